"""q-is-as-wide-as-hidden: takes the hidden size for the width of q, as in the first transformers."""


def layer_parts(config, index):
    at, hidden, inter = f"model.layers.{index}", config.hidden_size, config.intermediate_size
    kv = hidden // config.group_size
    rows = {"q": hidden, "k": kv, "v": kv}
    parts = {
        "input_norm": {f"{at}.input_layernorm.weight": (hidden,)},
        "qkv": {f"{at}.self_attn.{x}_proj.weight": (n, hidden) for x, n in rows.items()},
        "o": {f"{at}.self_attn.o_proj.weight": (hidden, hidden)},
        "post_norm": {f"{at}.post_attention_layernorm.weight": (hidden,)},
        "gate_up": {f"{at}.mlp.{x}_proj.weight": (inter, hidden) for x in ("gate", "up")},
        "down": {f"{at}.mlp.down_proj.weight": (hidden, inter)},
    }
    if config.qkv_bias:
        parts["qkv_bias"] = {f"{at}.self_attn.{x}_proj.bias": (n,) for x, n in rows.items()}
    if config.qk_norm:
        for x in ("q", "k"):
            parts[f"{x}_norm"] = {f"{at}.self_attn.{x}_norm.weight": (config.head_dim,)}
    return parts
