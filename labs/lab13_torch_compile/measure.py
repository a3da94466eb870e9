"""The measuring step of lab 13: our decode step as torch.compile sees it, counted by your harness.

In:  words: --inductor also asks the Inductor of this machine's CPU (a minute or two, needs a C++
     compiler); --predict and --spec as in `labs/measuring/step_timing.py`.
Out: what became of the careless step, and that both write the same; graphs, breaks and launches of
     the engine's own step; how a ladder of shapes is served; then, on a GPU, the compiled variants
     against the hand-written ones, and without one the captured run or how to get it.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from labs.lab13_torch_compile.compile_report import graph_breaks, launches, over_calls
from labs.lab13_torch_compile.decode_step import Batch, careless_step, draw, repaired_step, started
from labs.measuring.step_timing import Race
from labs.measuring.step_timing import main as race_main
from mini_engine.bench.decode_setup import build_setup
from mini_engine.cuda.graphs.backend import graphs_for
from mini_engine.cuda.model import KVCache, Model
from mini_engine.cuda.weights import load_weights, random_weights
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.engine.generation import SHIPPED
from mini_engine.model.config import ModelConfig, named_shape, tiny_shape
from mini_engine.model.tokenizer import Tokenizer
from mini_engine.step.kernels import StepShape, step_ops

MODES = ("eager", "default", "reduce-overhead")
LINES = ("A CUDA graph", "The first launch")  # prompts; the second one samples
RACE = Race(
    Path(__file__).parent,
    {
        "compile": "compile-default",
        "compile-graph": "compile-reduce-overhead",
        "nine": "graph-9",
        "five": "graph-5",
    },
    required=False,
)


def decode_step(layers: int) -> Callable[[], tuple[Tensor, Tensor]]:
    """A decode step of our plain model, small and narrow, with its token fed back."""
    config = replace(tiny_shape(), num_layers=layers, dtype="bfloat16")
    weights = random_weights(config, torch.device("cpu"), torch.bfloat16, seed=0)
    setup = build_setup(graphs_for("cpu"), weights, batch=1, context=40, room=64)
    model, inputs = setup.model, setup.inputs()
    return lambda: model.next_step(model.body(inputs, setup.attention), inputs)


def show_repaired(console: Console) -> None:
    """The careless step and the repaired one by your harness, and what the shipped model writes."""
    config = ModelConfig.from_folder(SHIPPED)
    tokenizer = Tokenizer(SHIPPED, config.eos_token_ids)
    weights = load_weights(config, SHIPPED, torch.device("cpu"), torch.float32)
    prompts = [tokenizer.encode(line) for line in LINES]

    def fresh() -> tuple[Model, Batch]:
        cache = KVCache.allocate(config, 1 + 8 * len(LINES), 16, torch.device("cpu"), torch.float32)
        model = Model(weights, cache)
        return model, started(model, prompts, [0.0, 0.8], tuple(config.eos_token_ids))

    with torch.no_grad():
        texts = []
        for step in (careless_step, repaired_step):
            with contextlib.redirect_stdout(io.StringIO()):
                calls = over_calls(step, [fresh()])
            breaks = graph_breaks(calls)
            told = ", ".join(f"{launches(calls[0], mode)} {mode}" for mode in MODES)
            console.print(f"{step.__name__}: graphs: {len(calls[0].graphs)}; launches: {told}")
            for found in breaks:
                console.print(f"  breaks at {found.place}: {found.reason}", soft_wrap=True)
            model, batch = fresh()
            rows = []
            for number in range(16):
                draw(batch, seed=number)
                with contextlib.redirect_stdout(io.StringIO()):
                    out: Any = step(model, batch)
                rows.append((out[0] if isinstance(out, tuple) else out).tolist())
            texts.append([tokenizer.decode(list(ids)) for ids in zip(*rows, strict=True)])
    for line, text in zip(LINES, texts[1], strict=True):
        console.print(f"  {line!r} goes on: {text!r}", soft_wrap=True)
    same = "the same text" if texts[0] == texts[1] else "NOT the same text"
    console.print(f"Both write {same}.\n")


def show_step(console: Console) -> None:
    """Two depths, so that what a layer costs is known, and from that what 28 cost."""
    found: dict[str, list[int]] = {mode: [] for mode in MODES}
    with torch.no_grad():
        for layers in (1, 2):
            calls = over_calls(decode_step(layers), [(), ()], fullgraph=True)
            for mode in MODES:
                found[mode].append(launches(calls[-1], mode))
    hows = ", then ".join(call.how for call in calls)
    console.print(
        f"Our decode step, two layers: {hows}; {len(calls[0].graphs)} graph, "
        f"{len(graph_breaks(calls))} breaks.\n"
    )
    qwen = named_shape("qwen3-0.6b")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("launches of a step", "2 layers", "a layer", f"{qwen.num_layers} layers"):
        table.add_column(name, justify="left" if name.endswith("step") else "right", no_wrap=True)
    said = {"eager": "eager, op by op", "default": "default, at best"}
    for mode, (one, two) in found.items():
        a_layer = two - one
        deep = one + a_layer * (qwen.num_layers - 1)
        table.add_row(said.get(mode, mode), str(two), str(a_layer), f"{deep:,}")
    for style, name in (("fused9", "nine a layer, by hand"), ("fused5", "five a layer, by hand")):
        one, two = (by_hand(replace(qwen, num_layers=n), style) for n in (1, 2))
        table.add_row(name, str(two), str(two - one), f"{by_hand(qwen, style):,}")
    console.print(table)
    console.print("By hand and in a graph of one's own: 1, as reduce-overhead.\n")


def by_hand(config: ModelConfig, style: str) -> int:
    return len(step_ops(config, StepShape.decode(1, 512), style))


def add_rms_norm(residual: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """What stands between two products."""
    residual = residual + x
    wide = residual.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
    return residual, (wide * scale).to(x.dtype) * weight


def show_ladder(console: Console) -> None:
    """A server's batch sizes, one call each."""
    sizes = default_capture_sizes(256, 2048)
    calls = [(torch.ones(n, 64), torch.ones(n, 64), torch.ones(64)) for n in sizes]
    console.print(f"add+RMSNorm over {len(sizes)} batch sizes, {sizes[0]} to {sizes[-1]}:")
    for dynamic in (None, True, False):
        served = Counter(call.how for call in over_calls(add_rms_norm, calls, dynamic=dynamic))
        told = ", ".join(f"{how} {served[how]}" for how in ("compiled", "reused", "eager"))
        console.print(f"  dynamic={dynamic!s:6}{told}")
    console.print()


def show_inductor(console: Console) -> None:
    """How many kernels Inductor writes for the two-layer step on this CPU. Products are no part."""
    if not any(map(shutil.which, ("g++", "clang++"))):
        console.print("--inductor: no C++ compiler here (g++ or clang++), so it cannot be asked.\n")
        return
    import torch._inductor.metrics as metrics

    torch.compiler.reset()
    metrics.reset()
    step: Any = torch.compile(decode_step(2), fullgraph=True)
    with torch.no_grad():
        step()
    console.print(
        f"Inductor {torch.__version__} wrote {metrics.generated_kernel_count} C++ kernels for the "
        "two layers, products not counted.\nCompare with “default, at best” above, which counts "
        "products too. For a GPU it decides otherwise.\n"
    )


def main(words: list[str]) -> int:
    console = Console(highlight=False)
    if not {"-h", "--help"} & set(words):
        show_repaired(console)
        show_step(console)
        show_ladder(console)
        if "--inductor" in words:
            show_inductor(console)
    return race_main(RACE, [word for word in words if word != "--inductor"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
