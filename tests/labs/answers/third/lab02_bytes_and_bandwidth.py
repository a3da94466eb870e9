"""A third right way: the bytes by family of tensor, what is cached read off k_proj and v_proj."""

from mini_engine.model.checkpoint import layer_parts


def fit(free_bytes, context, batch, per_token, per_request):
    one = per_request + context * per_token
    if free_bytes < 0:
        return Fit(free_bytes - one * batch, 0, 0)
    many, _ = divmod(free_bytes, one)
    spare = free_bytes - per_request
    return Fit(free_bytes - one * batch, many, spare // per_token if spare > 0 else 0)


def tensor_bytes(config, quant="bf16"):
    if (kind := QUANTS.get(quant)) is None:
        raise ValueError(f"{quant} is not a way to store weights that this project knows")
    if kind.bits in (16, 32):
        return {name: _numbers(s) * kind.bits // 8 for name, s in tensor_shapes(config).items()}
    taken = {name: _numbers(s) * config.dtype_bytes for name, s in tensor_shapes(config).items()}
    for index in range(config.num_layers):
        parts = layer_parts(config, index)
        for field in ("qkv", "o", "gate_up", "down"):
            taken |= {name: kind.matrix_bytes(*shape) for name, shape in parts[field].items()}
    return taken


def _numbers(shape):
    return shape[0] if len(shape) == 1 else shape[0] * shape[1]


def decode_bytes(config, contexts, quant="bf16", kv_dtype="bf16"):
    read = 0.0
    for name, count in tensor_bytes(config, quant).items():
        if name != EMBED or config.tie_word_embeddings:
            read += count
    if kv_dtype not in KV_DTYPE_BYTES:
        raise ValueError(f"a cache in {kv_dtype}?")
    shapes = tensor_shapes(config)
    rows = sum(s[0] for n, s in shapes.items() if n.endswith(("k_proj.weight", "v_proj.weight")))
    return DecodeBytes(round(read), rows * KV_DTYPE_BYTES[kv_dtype] * sum(contexts))


def layer_parts(config, index):
    def named(*pairs):
        return {f"model.layers.{index}.{name}": shape for name, shape in pairs}

    wide = [config.num_heads * config.head_dim] + 2 * [config.num_kv_heads * config.head_dim]
    letters = list(zip("qkv", wide, strict=True))
    hidden, inner = (config.hidden_size,), (config.intermediate_size,)
    parts = {}
    parts["down"] = named(("mlp.down_proj.weight", hidden + inner))
    parts["gate_up"] = named(*((f"mlp.{x}_proj.weight", inner + hidden) for x in ("gate", "up")))
    parts["o"] = named(("self_attn.o_proj.weight", (*hidden, wide[0])))
    parts["qkv"] = named(*((f"self_attn.{x}_proj.weight", (n, *hidden)) for x, n in letters))
    if config.qkv_bias:
        parts["qkv_bias"] = named(*((f"self_attn.{x}_proj.bias", (n,)) for x, n in letters))
    norms = {"input_norm": "input_layernorm", "post_norm": "post_attention_layernorm"}
    for field, name in norms.items():
        parts[field] = named((f"{name}.weight", hidden))
    for x in "qk" if config.qk_norm else "":
        parts[f"{x}_norm"] = named((f"self_attn.{x}_norm.weight", (config.head_dim,)))
    return parts


def tensor_shapes(config):
    shapes = {FINAL_NORM: (config.hidden_size,)}
    index = config.num_layers
    while index:
        index -= 1
        for tensors in layer_parts(config, index).values():
            shapes.update(tensors)
    for table in (EMBED, LM_HEAD):
        if table == EMBED or not config.tie_word_embeddings:
            shapes[table] = config.vocab_size, config.hidden_size
    return shapes
