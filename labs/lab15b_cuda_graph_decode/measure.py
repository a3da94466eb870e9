"""The measuring step of lab 15b: Qwen3-0.6B eagerly, by your graphs, and several steps a replay.

In:  the learner's capture, inputs and feedback, where the engine's would stand. Out: a line for
each way to decode, in ms a token; without a GPU what a spec predicts, marked as predicted.

A token is measured as its reader gets it: a call, then its tokens read back, on the wall clock. The
ways take turns, forwards and backwards. Weights are random: they cost what real ones cost.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from rich.console import Console
from rich.table import Table
from torch._subclasses.fake_tensor import FakeTensorMode

from labs.measuring import ledger
from labs.runner import command
from mini_engine.bench.decode_setup import DecodeSetup, Variant, build_setup
from mini_engine.bench.intervals import median_interval
from mini_engine.bench.rows import Interval
from mini_engine.bench.variants import OURS, PLAIN, FusedGraph, OursEager, OursGraph, no_kernels
from mini_engine.cuda.graphs.backend import GraphBackend, graphs_for, measured_dtype, why_no_gpu
from mini_engine.cuda.graphs.capture import no_garbage_collection
from mini_engine.cuda.weights import random_weights
from mini_engine.model.config import ModelConfig, named_shape
from mini_engine.step.cards import DeviceSpec, load_spec
from mini_engine.step.kernels import OpCost, StepShape, step_ops
from mini_engine.step.run import Mode, step_time

SHAPE, BATCH, CONTEXT, STEPS, ROUNDS = "qwen3-0.6b", 1, 512, 64, 8
ONE_GRAPH = "one graph"  # what `--predict` is about
LEDGER_LINE = f"ITL {SHAPE}, batch {BATCH}, context {CONTEXT}, {ONE_GRAPH}, plain (lab 15b)"


@dataclass(frozen=True)
class Way:
    """One way to decode, and how the simulator is told of it."""

    name: str
    make: Callable[[DecodeSetup], Variant]
    mode: Mode
    fused: bool = False  # five Triton kernels a layer, and not PyTorch's ops
    steps: int = 1  # a call


WAYS = (
    Way("eager", OursEager, "eager"),
    Way(ONE_GRAPH, OursGraph, "full"),
    Way("8 steps a graph", lambda setup: OursGraph(setup, 8), "full", steps=8),
    Way("5 kernels a layer", lambda setup: FusedGraph(setup, 5, False, 1), "full", fused=True),
    Way(
        "5 a layer, 8 steps",
        lambda setup: FusedGraph(setup, 5, False, 8),
        "full",
        fused=True,
        steps=8,
    ),
)


def main(words: Sequence[str]) -> int:
    """The command. Exit code 0, measured or not."""
    parser = argparse.ArgumentParser(prog="./lab measure 15b")
    parser.add_argument("--predict", type=float, metavar="MS", help=f"a token by {ONE_GRAPH}")
    parser.add_argument("--spec", default="h200", help="the card to predict for (default: h200)")
    parser.add_argument(
        "--host", help="its host, a file of `calibrate --host`, say (default: server)"
    )
    args = parser.parse_args(list(words))
    if args.predict is not None and not args.predict > 0:
        parser.error(f"--predict {args.predict:g}: a time in ms is above zero")
    if args.predict is not None:
        ledger.predict(LEDGER_LINE, args.predict, "ms")
    config, console = named_shape(SHAPE), Console(highlight=False)
    specs = {engine: load_spec(args.spec, args.host, engine) for engine in (PLAIN, OURS)}
    on = f"{specs[PLAIN].name} on the host {specs[PLAIN].host}"
    line = shlex.join(["./lab", "measure", "15b", *words])
    predicted, reason = predicted_ms(config, specs), why_not()
    what = f"{SHAPE}, 16 bits, batch {BATCH}, context {CONTEXT}; a token takes\n"
    if reason:
        console.print(f"Not yet measured: no run on a GPU has been kept, and here: {reason}.")
        console.print(f"Predicted for {on}: {what}")
        console.print(table_of(predicted, {}, {}))
        found, who = predicted[ONE_GRAPH][1], "the spec"
    else:
        gpu = torch.cuda.get_device_name()
        console.print(f"{gpu}; predicted for {on}: {what}")
        backend = graphs_for("cuda")  # a GPU without bf16 (a T4) runs the plain ways, in fp16
        timed, same = measured(backend, config, measured_dtype(backend))
        console.print(table_of(predicted, timed, same))
        found, who = timed[ONE_GRAPH].median / 1e3, "measured"
        if args.predict is not None:
            ends = timed[ONE_GRAPH].low / 1e3, timed[ONE_GRAPH].high / 1e3
            ledger.measure(
                LEDGER_LINE, found, "ms", on=gpu, command=line, low=ends[0], high=ends[1]
            )
    if args.predict is not None:
        console.print(f"\n{judged(args.predict, found, who)}")
        console.print(f"It stands in your ledger: {command('ledger')}")
    if reason:
        console.print(f"\nOn a machine with an NVIDIA GPU this line measures:\n  {line}")
    return 0


def why_not() -> str | None:
    """Why nothing can be measured here, in one line; None where it can."""
    return why_no_gpu()


def predicted_ms(
    config: ModelConfig, specs: Mapping[str, DeviceSpec]
) -> dict[str, tuple[int, float]]:
    """Of each way the ops of a step, and ms a token: launches, kernels and the read-back. Plain
    PyTorch and our kernels are engines of their own."""
    plain = watched_ops(config)
    fused5 = step_ops(config, StepShape.decode(BATCH, CONTEXT), "fused5")
    found = {}
    for way in WAYS:
        ops = fused5 if way.fused else plain
        spec = replace(  # fed back on the device: no engine, no copy of inputs
            specs[OURS if way.fused else PLAIN],
            host_step_us=0.0, ahead_us=0.0, request_us=0.0, copy_us=0.0,
        )  # fmt: skip
        took = step_time(ops * way.steps, spec, way.mode)
        found[way.name] = len(ops), took.itl_us / way.steps / 1e3
    return found


def watched_ops(config: ModelConfig) -> list[OpCost]:
    """The ops of a step of the plain model, watched on tensors that have shapes and no numbers."""
    with torch.inference_mode(), FakeTensorMode(allow_non_fake_inputs=True):
        return OursEager(setup_of(graphs_for("cpu"), config, torch.bfloat16)).ops()


def setup_of(backend: GraphBackend, config: ModelConfig, dtype: torch.dtype) -> DecodeSetup:
    weights = random_weights(config, backend.device, dtype, seed=0)
    return build_setup(backend, weights, BATCH, CONTEXT, CONTEXT + STEPS + 16)


# ---------------------------------------------------------------- the stopwatch


def measured(
    backend: GraphBackend, config: ModelConfig, dtype: torch.dtype
) -> tuple[dict[str, Interval], dict[str, int]]:
    """Of each way µs a token, and how many of STEPS greedy tokens are those of the first way."""
    ways = [way for way in WAYS if not way.fused or no_kernels(backend) is None]
    laps: dict[str, list[float]] = {way.name: [] for way in ways}
    with torch.inference_mode():
        setup = setup_of(backend, config, dtype)
        variants = {way.name: way.make(setup) for way in ways}
        for variant in variants.values():
            variant.prepare()
        wrote = {
            name: lap(backend, variant)[1] for name, variant in variants.items()
        }  # and warms up
        with no_garbage_collection():
            for i in range(ROUNDS):
                for name in list(variants)[:: -1 if i % 2 else 1]:
                    laps[name].append(lap(backend, variants[name])[0])
        for variant in variants.values():
            variant.release()
    first = wrote[ways[0].name]
    same = {name: sum(a == b for a, b in zip(w, first, strict=True)) for name, w in wrote.items()}
    return {name: median_interval(times) for name, times in laps.items()}, same


def lap(backend: GraphBackend, variant: Variant) -> tuple[float, list[list[int]]]:
    """STEPS decode steps from the start: µs a token, and the tokens of each step."""
    variant.rewind()
    backend.synchronize()
    wrote, began = [], time.perf_counter()
    for _ in range(STEPS // variant.steps_a_call):
        variant.step()
        tokens = [tokens for _, tokens in variant.outputs]
        wrote += torch.stack(tokens).tolist()  # waits for the device
    return (time.perf_counter() - began) * 1e6 / STEPS, wrote


# ---------------------------------------------------------------- what is said


def table_of(
    predicted: dict[str, tuple[int, float]], timed: dict[str, Interval], same: dict[str, int]
) -> Table:
    """A line for each way; what was not measured says so."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("", "ops", "predicted ms", "measured ms", "95%", "as eager"):
        table.add_column(head, justify="right" if head else "left", no_wrap=True)
    for name, (ops, ms) in predicted.items():
        row = ["not yet", "", ""]
        if name in timed:
            us = timed[name]
            row = [f"{us.median / 1e3:.3f}", f"{us.low / 1e3:.3f} to {us.high / 1e3:.3f}"]
            row.append(f"{same[name]} of {STEPS}")
        table.add_row(name, f"{ops:,}", f"{ms:.3f}", *row)
    return table


def judged(said_ms: float, ms: float, who: str) -> str:
    """The learner's prediction beside a time."""
    factor = max(said_ms, ms) / min(said_ms, ms)
    off = f"you said {factor:.2f} times {'longer' if said_ms > ms else 'shorter'}"
    off = "as said" if factor < 1.005 else off
    return f"Your prediction for {ONE_GRAPH} {said_ms:g} ms, {who} {ms:.3f} ms: {off}."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
