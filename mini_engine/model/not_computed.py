"""What a config.json may ask for and the engine does not compute.

In:  its fields. Out: nothing, or a ValueError by the name of the field: without it the model would
     load and write nonsense.
"""

from __future__ import annotations

from mini_engine.files import in_short
from mini_engine.model.fields import Fields

MAX_LAYERS = 1000  # the largest models so far have 126


def refuse_what_is_not_computed(f: Fields, family: str) -> None:
    """Raises ValueError that names the first such field."""
    for field in ("attention_bias", "mlp_bias"):
        # As in transformers, qwen2 has a bias on q, k and v whatever the file says.
        if family != "qwen2" and f.boolean(field, False):
            raise ValueError(f"{field} is true: not supported for {family}, only qwen2 has a bias")
    if f.given("sliding_window") and f.boolean("use_sliding_window", family == "llama"):
        raise ValueError("sliding_window is in use: not supported, every layer attends to all")
    if f.given("layer_types"):
        types = f.value("layer_types")
        listed = types if isinstance(types, list) else [types]
        if others := [one for one in listed if one != "full_attention"]:
            raise ValueError(
                f"layer_types has {in_short(others[0])}: only 'full_attention' is supported"
            )
        if len(listed) != f.integer("num_hidden_layers", most=MAX_LAYERS):
            raise ValueError(
                f"layer_types lists {len(listed)} layers, and num_hidden_layers is "
                f"{in_short(f.value('num_hidden_layers'))}"
            )
    for field in ("num_experts", "num_local_experts"):
        if f.integer(field, 0):
            raise ValueError(f"{field} is set: mixtures of experts are not supported")
    if f.text("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act is {f.value('hidden_act')!r}: only 'silu' is supported")
