"""What `--json` prints: one version, one unit for a kind of quantity, and the fields of a command.

In:  the result of a command, in whatever units it computes.
Out: the document that is printed. A name ends with its unit:

    _us      a time           _bytes   memory and files     _gb_s    10^9 bytes a second
    _per_s   a rate           _tflops  10^12 operations a second

What ends in none of them is a count (of tokens, rows, steps, requests, blocks), a share or a ratio.
An interval is `low_us` and `high_us` beside its `itl_us`.

`FIELDS` lists what stands at the top of each command's document: "?" may be missing, and null may
stand for what is not known. A field that is removed, renamed or given another meaning makes
`VERSION` one larger; a new field does not. What `bench`, `calibrate` and `gpu` print of a
measurement has the names that the files in course/measurements have, and these units.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VERSION = 1

_COMMON = {"schema_version": "number", "command": "text"}
_WHERE = {"shape": "text", "spec": "text", "host": "text", "engine": "text"}
_STORED = {"quant": "text", "kv_dtype": "text"}
_SIZES = {"capture_sizes": "list", "left_out_sizes": "list"}
FIELDS: dict[str, dict[str, str]] = {
    "crossover": {
        **_WHERE, **_STORED, **_SIZES, "style": "text", "context": "number", "engine_us": "number",
        "predicted": "truth", "max_batch": "number", "fits": "truth", "crossover_batch": "number",
        "crossover_fits": "truth", "crossover_interval": "list", "batch_1": "object",
        "finding": "text", "rows": "list", "picture": "text",
    },
    "ladder": {
        **_WHERE, **_SIZES, "mode": "text", "max_num_seqs": "number",
        "max_num_batched_tokens": "number", "num_speculative_tokens": "number", "layers": "number",
        "predicted": "truth", "piecewise_rungs": "number", "piecewise_graphs": "number",
        "full_graphs": "number", "graphs": "number", "capture_us": "number",
        "memory_bytes": "number", "fits": "truth", "batch?": "object", "histogram?": "object",
        "picture?": "text",
    },
    "capacity": {
        **_STORED, "gpu": "text", "host": "text", "engine": "text", "model": "text",
        "context": "number", "batch": "number", "full_graphs": "number", "rows": "list",
        "kv_bytes_per_token": "number", "fits": "truth", "left_bytes": "number",
        "max_context": "number", "model_context": "number", "max_batch": "number",
        "floor_us": "number", "copy_floor_us": "number", "without_pages": "object",
        "predicted": "object",
    },
    "serve": {
        **_WHERE, **_STORED, **_SIZES, "trace": "text", "style": "text", "rows_skipped": "number",
        "first_row_skipped": "text", "preemption": "text", "host_blocks": "number",
        "prefix_caching": "truth", "shared_prefix": "number", "share": "number", "mode": "text",
        "requests": "number", "refused": "number", "truncated": "number",
        "prompt_tokens": "number", "output_tokens": "number", "preemptions": "number",
        "recomputed_tokens": "number", "swaps": "number", "swapped_bytes": "number",
        "swap_us": "number", "swap_saved_us": "number", "prefix_hit_rate": "number",
        "prefill_tokens_saved": "number", "recompute_tokens_saved": "number",
        "elapsed_us": "number", "busy_us": "number", "ttft_p50_us": "number",
        "ttft_p99_us": "number", "itl_p50_us": "number", "itl_p99_us": "number",
        "itl_max_us": "number", "tokens_per_s": "number", "requests_per_s": "number",
        "steps": "number", "turns": "number", "steps_by_mode": "object", "steps_by_rung": "object",
        "rows": "number", "padded_rows": "number", "padding_waste": "number",
        "kv_blocks": "number", "kv_blocks_peak": "number", "itl_p50_interval": "object",
        "max_num_batched_tokens": "number", "steps_by_rows": "object", "graphs": "number",
        "graph_memory_bytes": "number", "capture_us": "number", "optimal_ladder": "object",
        "wall_us": "number", "simulated_steps_per_s": "number",
    },
    "trace": {
        **{f"{name}?": kind for name, kind in _WHERE.items()}, "file": "text",
        "timelines": "object", "measured_on?": "text", "emulated?": "truth",
    },
    "validate": {
        "points": "list", "unknown": "list", "classes": "list", "summary": "object",
        "quantised": "object", "pairs": "list", "parameters": "list", "inseparable": "list",
        "pictures": "list",
    },
    "generate": {
        **{f"{name}?": kind for name, kind in _WHERE.items() if name != "shape"}, **_STORED,
        "backend": "text", "streamed": "truth", "model": "text", "mode": "text",
        "prompts": "list", "launches?": "number", "kernels?": "number", "notes?": "list",
        "simulated_us?": "number", "device?": "text", "kernels_per_layer?": "number",
        "pdl?": "truth", "steps_per_replay?": "number", "graphs?": "number",
        "capture_us?": "number",
    },
    "demo": {
        **_WHERE, "checkpoint": "text", "prompts": "list", "modes": "list", "modes_agree": "truth",
        "batch": "number", "context": "number", "service": "text", "ops": "text",
        "predictions": "list", "measured": "object", "files": "object",
    },
    "bench": {
        "out?": "text", "engines?": "list", "emulated?": "truth", "rows?": "list",
        "others?": "list", "bars?": "list", "table?": "text", "pictures?": "list",
        "not_drawn?": "object",
    },
    "calibrate": {
        "emulated": "truth", "gpu?": "text", "machine?": "text", "evidence?": "text",
        "card?": "text", "host": "text", "op_us?": "object", "base?": "text", "base_host": "text",
        "usual_op_us?": "number", "engines_figure?": "object", "pdl?": "object",
        "largest_residual?": "number", "worst_held_out?": "number", "fitted": "object",
        "kept_from_base": "object",
    },
    "gpu": {
        "folder?": "text", "stages?": "list", "summary?": "list", "written?": "list",
        "emulated?": "truth", "figures?": "object",
    },
}  # fmt: skip

# What a command may compute in, and what is printed instead. "_gb_s" and "_per_s" are no times.
_FACTORS = {
    "_ns": ("_us", 1e-3), "_ms": ("_us", 1e3), "_s": ("_us", 1e6), "_kib": ("_bytes", 2**10),
    "_mib": ("_bytes", 2**20), "_gib": ("_bytes", 2**30), "_mb": ("_bytes", 1e6),
    "_gb": ("_bytes", 1e9),
}  # fmt: skip
_AS_THEY_ARE = ("_gb_s", "_per_s")


def document(command: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """What is printed."""
    return {"schema_version": VERSION, "command": command, **in_units(result)}


def in_units(value: Any) -> Any:
    """The same, with every time in µs and all memory in bytes, named so."""
    if isinstance(value, Mapping):
        return dict(_field(str(name), one) for name, one in value.items())
    if isinstance(value, list | tuple):
        return [in_units(one) for one in value]
    return value


def _field(name: str, value: Any) -> tuple[str, Any]:
    """One field. What stands in an object under a name with a unit stays: a measured record."""
    unit = _unit(name)
    if unit not in _FACTORS or isinstance(value, Mapping | str):
        return name, in_units(value)
    other, factor = _FACTORS[unit]
    return name.removesuffix(unit) + other, _times(value, factor)


def _unit(name: str) -> str:
    """ "_ms" of "itl_ms"; nothing of a rate."""
    before, _, last = name.rpartition("_")
    return f"_{last}" if before and not name.endswith(_AS_THEY_ARE) else ""


def _times(value: Any, factor: float) -> Any:
    """Numbers, in lists too; null stays null. Bytes are whole."""
    if isinstance(value, list | tuple):
        return [_times(one, factor) for one in value]
    if value is None or isinstance(value, bool):
        return value
    product = value * factor
    return round(product) if factor in (2**10, 2**20, 2**30) else product


def errors(command: str, printed: Mapping[str, Any]) -> list[str]:
    """Where a document leaves the schema, in words; nothing where it keeps to it."""
    fields = {**_COMMON, **FIELDS[command]}
    known = {name.rstrip("?") for name in fields}
    wrong = [f"{name} is in no schema" for name in printed if name not in known]
    wrong += [f"{name} is missing" for name in fields if name not in printed and name[-1] != "?"]
    for name, kind in fields.items():
        value = printed.get(name.rstrip("?"))
        if value is not None and not isinstance(value, _KINDS[kind]):
            wrong.append(f"{name} is {value!r:.40}, expected a {kind}")
    return [*wrong, *_wrong_units(printed)]


_KINDS: dict[str, type | tuple[type, ...]] = {
    "number": (int, float), "text": str, "truth": bool, "list": list, "object": dict,
}  # fmt: skip


def _wrong_units(value: Any) -> list[str]:
    if isinstance(value, list):
        return [one for part in value for one in _wrong_units(part)]
    if not isinstance(value, dict):
        return []
    own = [f"{name} has a unit of its own" for name in value if _unit(name) in _FACTORS]
    return own + [one for part in value.values() for one in _wrong_units(part)]
