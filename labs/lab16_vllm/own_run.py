"""Read one's own vLLM: the log of its start-up, the result file of a benchmark, or both.

In:  `./lab measure 16 --log FILE --result FILE`, with --shape, --max-num-seqs and
     --max-num-batched-tokens where the server had others than `Setup`.
Out: what your functions read there, beside what this engine's policy and model say.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from labs.lab16_vllm.vllm_run import (
    Setup,
    StartUp,
    captured_graphs,
    expected_graphs,
    latency,
    read_startup,
)
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.files import read_object
from mini_engine.model.config import named_shape
from mini_engine.step.cards import DeviceSpec
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.run import Mode, step_time


def show_own(
    log: str | None, result: str | None, setup: Setup, spec: DeviceSpec, console: Console
) -> None:
    """Read what is given and show it. Raises ValueError and OSError with the file's name."""
    start = shown_log(Path(log), setup, console) if log else None
    if result:
        shown_result(Path(result), start, setup, spec, console)


def shown_log(path: Path, setup: Setup, console: Console) -> StartUp:
    """The start-up, its ladder and captures, held against our policy."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        start, captured = read_startup(text), captured_graphs(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    sizes, mode = list(start.capture_sizes), start.cudagraph_mode
    ours = default_capture_sizes(setup.max_num_seqs, setup.max_num_batched_tokens, mode=mode)
    graphs = expected_graphs(sizes, mode, setup.max_num_seqs)
    console.print(
        f"{path}: vLLM {start.version}, compile {start.compilation_mode}, graphs {mode}",
        soft_wrap=True,
    )
    console.print(f"  ladder: {len(sizes)} sizes{f', up to {sizes[-1]}' if sizes else ''}")
    console.print(f"  captured: {captured}")
    limits = f"max_num_seqs {setup.max_num_seqs}"
    for what, same in (
        ("the ladder is the default one", sizes == ours),
        ("the captures are those that the mode needs", captured == graphs),
    ):
        said = "yes" if same else "NO (other limits? give them: --max-num-seqs)"
        console.print(f"  for {limits}, {what}: {said}", soft_wrap=True)
    return start


def shown_result(
    path: Path, start: StartUp | None, setup: Setup, spec: DeviceSpec, console: Console
) -> None:
    """ITL and TPOT, beside our model's step for the same batch, context and mode."""
    result = read_object(path)
    try:
        found = latency(result)
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path}: {error}") from error
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("gaps", "ITL p50", "mean", "p99", "TPOT", "tokens a gap"):
        table.add_column(name, justify="right")
    times = (found.median_itl_ms, found.mean_itl_ms, found.p99_itl_ms, found.mean_tpot_ms)
    row = (f"{found.gaps:,}", *(f"{ms:.3f}" for ms in times), f"{found.tokens_per_gap:.2f}")
    table.add_row(*row)
    console.print(f"\n{path}: ms, seen by the client", soft_wrap=True)
    console.print(table)
    batch = result.get("max_concurrency")
    if not isinstance(batch, int) or batch < 1:
        console.print("No max_concurrency in the file: how many requests ran together, and so what")
        console.print("our model says of them, is not known.")
        return
    mode = launched_as(start)
    context = mean_context(result)
    ops = step_ops(named_shape(setup.shape), StepShape.decode(batch, context), spec.ops)
    ms = step_time(ops, spec, mode, num_reqs=batch).itl_us / 1e3
    ends = spec.interval(ms, {"eager": "NONE"}.get(mode, mode.upper()), batch)
    known = f"{ends[0]:.2g} to {ends[1]:.2g}" if ends else "no interval: too few measured it"
    console.print(
        f"Our model of {setup.shape} on {spec.name}, batch {batch}, context {context}, {mode}: "
        f"{ms:.2g} ms ({known}), without HTTP and client", soft_wrap=True,
    )  # fmt: skip


def launched_as(start: StartUp | None) -> Mode:
    """How a decode step is launched in the mode that the log tells of; without a log, as one graph,
    vLLM's default."""
    if start is None:
        return "full"
    names: dict[str, Mode] = {"NONE": "eager", "PIECEWISE": "piecewise"}
    return names.get(start.cudagraph_mode, "full")


def mean_context(result: dict[str, Any]) -> int:
    """Tokens that a decode step sees on the average: the prompt, and half of the answer."""
    lens = [
        prompt + tokens / 2
        for prompt, tokens in zip(result["input_lens"], result["output_lens"], strict=True)
        if tokens
    ]
    return round(statistics.fmean(lens))
