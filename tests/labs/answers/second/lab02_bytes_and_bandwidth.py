"""Another right way: lists that are filtered, the rest as a difference, limits by search."""

import bisect


def fit(free_bytes, context, batch, per_token, per_request):
    def largest(takes):
        return bisect.bisect_right(range(1, max(1, free_bytes) + 2), free_bytes, key=takes)

    left = free_bytes
    for _ in range(batch):
        left -= per_request + context * per_token
    many = largest(lambda n: n * (context * per_token + per_request))
    return Fit(left, many, largest(lambda n: n * per_token + per_request))


def tensor_bytes(config, quant="bf16"):
    try:
        kind = QUANTS[quant]
    except KeyError:
        raise ValueError(f"no such quant: {quant}") from None
    everything = kind.bits >= 16
    taken = {}
    for name, shape in tensor_shapes(config).items():
        numbers = 1
        for size in shape:
            numbers *= size
        if everything:
            taken[name] = numbers * kind.bits / 8
        elif name.endswith("_proj.weight"):
            groups = math.ceil(shape[1] / kind.group) if kind.group else 1
            taken[name] = numbers * kind.bits / 8 + shape[0] * groups * kind.scale_bytes
        else:
            taken[name] = float(numbers * config.dtype_bytes)
    return taken


def decode_bytes(config, contexts, quant="bf16", kv_dtype="bf16"):
    size = KV_DTYPE_BYTES.get(kv_dtype)
    if size is None:
        raise ValueError(f"no such kv_dtype: {kv_dtype}")
    taken = tensor_bytes(config, quant)
    weights = sum(taken.values()) - (taken[EMBED] if LM_HEAD in taken else 0)
    cached = 0
    for tokens in contexts:
        for _ in range(config.num_layers):
            cached += tokens * (config.kv_size + config.kv_size) * size
    return DecodeBytes(weights=round(weights), cache=cached)


def layer_parts(config, index):
    h, q, kv, inner = (config.hidden_size, config.q_size, config.kv_size, config.intermediate_size)
    plan = [
        ("input_norm", "input_layernorm.weight", (h,)),
        ("qkv", "self_attn.q_proj.weight", (q, h)),
        ("qkv", "self_attn.k_proj.weight", (kv, h)),
        ("qkv", "self_attn.v_proj.weight", (kv, h)),
        ("o", "self_attn.o_proj.weight", (h, q)),
        ("post_norm", "post_attention_layernorm.weight", (h,)),
        ("gate_up", "mlp.gate_proj.weight", (inner, h)),
        ("gate_up", "mlp.up_proj.weight", (inner, h)),
        ("down", "mlp.down_proj.weight", (h, inner)),
    ]
    if config.family == "qwen2" or config.qkv_bias:
        plan += [
            ("qkv_bias", f"self_attn.{x}_proj.bias", (n,))
            for x, n in (("q", q), ("k", kv), ("v", kv))
        ]
    if config.qk_norm:
        plan += [(f"{x}_norm", f"self_attn.{x}_norm.weight", (config.head_dim,)) for x in "qk"]
    parts = {}
    for field, name, shape in plan:
        parts.setdefault(field, {})[f"model.layers.{index}.{name}"] = shape
    return parts


def tensor_shapes(config):
    tables = [EMBED] if config.tie_word_embeddings else [EMBED, LM_HEAD]
    shapes = dict.fromkeys(tables, (config.vocab_size, config.hidden_size))
    layers = [layer_parts(config, index) for index in range(config.num_layers)]
    shapes.update(item for layer in layers for part in layer.values() for item in part.items())
    return {**shapes, FINAL_NORM: (config.hidden_size,)}
