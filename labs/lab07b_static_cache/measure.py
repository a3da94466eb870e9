"""The measuring step of lab 7b: decode steps of a static cache against one with pages, by batch.

In:  the learner's cache and engine, where the engine's would stand. Out: for each batch a line for
each way to decode, in ms a step, and which part of the columns that it reads is needed; without a
GPU what a spec predicts, marked as predicted.

The requests are the first of the trace that `serve` replays, each half way through its answer. A
step of the static cache is all that its engine does for one: the step built on the host, copied,
run, read back. Pages: one graph of five kernels a layer, every request at the mean of the contexts.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Sequence

import torch
from rich.console import Console
from rich.table import Table

from labs.lab07b_static_cache.static_cache import StaticCache, decode_step
from labs.lab07b_static_cache.static_engine import StaticEngine
from labs.measuring import ledger
from labs.runner import command
from mini_engine.bench.decode_setup import build_setup
from mini_engine.bench.intervals import median_interval
from mini_engine.bench.rows import Interval
from mini_engine.bench.variants import OURS, PLAIN, FusedGraph, no_kernels
from mini_engine.cuda.graphs.backend import GraphBackend, graphs_for, measured_dtype, why_no_gpu
from mini_engine.cuda.graphs.capture import no_garbage_collection
from mini_engine.cuda.model import Model
from mini_engine.cuda.weights import Weights, random_weights
from mini_engine.model.config import ModelConfig, named_shape
from mini_engine.serving.request_trace import SHIPPED_TRACE, read_trace
from mini_engine.step.cards import load_spec
from mini_engine.step.kernels import StepShape
from mini_engine.step.step_model import StepModel

SHAPE, T_MAX, BATCHES, STEPS, ROUNDS = "qwen3-0.6b", 4096, (1, 8, 32, 128), 16, 6
EAGER, GRAPH, PAGES = "static, eager", "static, one graph", "pages, one graph"
ASKED = 32  # the batch that --predict is about
LEDGER_LINE = f"ITL {SHAPE}, batch {ASKED}, {T_MAX} columns, {GRAPH} (lab 7b)"


def main(words: Sequence[str]) -> int:
    """The command. Exit code 0, measured or not."""
    parser = argparse.ArgumentParser(prog="./lab measure 7b")
    about = f"a step of {ASKED} rows of {T_MAX:,} columns in one graph"
    parser.add_argument("--predict", type=float, metavar="MS", help=about)
    parser.add_argument("--spec", default="h200", help="the card to predict for (default: h200)")
    parser.add_argument("--host", help="its host (default: server)")
    args = parser.parse_args(list(words))
    if args.predict is not None:
        if not args.predict > 0:
            parser.error(f"--predict {args.predict:g}: a time in ms is above zero")
        ledger.predict(LEDGER_LINE, args.predict, "ms")
    config, console, reason = named_shape(SHAPE), Console(highlight=False), why_not()
    line = shlex.join(["./lab", "measure", "7b", *words])
    timed: dict[tuple[int, str], Interval] = {}
    if reason:
        console.print(f"Not yet measured: no run on a GPU has been kept, and here: {reason}.")
    else:
        backend = graphs_for("cuda")
        dtype = measured_dtype(backend)  # a GPU without bf16 (a T4) runs what is plain, in fp16
        weights = random_weights(config, backend.device, dtype, seed=0)
        for batch in BATCHES:
            timed |= measured(backend, weights, contexts_of(batch, T_MAX), T_MAX)
    console.print(
        f"{SHAPE}, 16 bits, rows of {T_MAX:,} columns, predicted for {args.spec}; in ms\n"
    )
    console.print(table_of(predicted_ms(config, args.spec, args.host), timed))
    if (found := timed.get((ASKED, GRAPH))) and args.predict is not None:
        low, high = found.low / 1e3, found.high / 1e3
        gpu, ms = torch.cuda.get_device_name(), found.median / 1e3
        ledger.measure(LEDGER_LINE, ms, "ms", on=gpu, command=line, low=low, high=high)
    if args.predict is not None:
        console.print(f"\nIt stands in your ledger: {command('ledger')}")
    if reason:
        console.print(f"\nOn a machine with an NVIDIA GPU this line measures:\n  {line}")
    return 0


def why_not() -> str | None:
    """Why nothing can be measured here, in one line; None where it can."""
    return why_no_gpu()


def contexts_of(batch: int, t_max: int) -> list[int]:
    """Of the first requests that fit into a row, half way through their answers."""
    every = read_trace(SHIPPED_TRACE)
    fits = [r for r in every if r.prompt_tokens + r.output_tokens + STEPS < t_max]
    return [r.prompt_tokens + (r.output_tokens + 1) // 2 for r in fits[:batch]]


def predicted_ms(
    config: ModelConfig, card: str, host: str | None
) -> dict[tuple[int, str], tuple[float, float]]:
    """ms of a step, and which part of the columns that it reads is needed."""
    plain, ours = (StepModel(config, load_spec(card, host, name)) for name in (PLAIN, OURS))
    found = {}
    for batch in BATCHES:
        contexts = contexts_of(batch, T_MAX)
        needed, whole = sum(contexts) / (batch * T_MAX), StepShape.decode(batch, T_MAX)
        found[batch, EAGER] = plain.itl_us("eager", whole) / 1e3, needed
        found[batch, GRAPH] = plain.itl_us("full", whole) / 1e3, needed
        paged = StepShape.mixed([1] * batch, contexts)
        found[batch, PAGES] = ours.itl_us("full", paged) / 1e3, 1.0
    return found


# ---------------------------------------------------------------- the stopwatch


def measured(
    backend: GraphBackend, weights: Weights, contexts: Sequence[int], t_max: int
) -> dict[tuple[int, str], Interval]:
    """µs a step of each way, in turns, forwards and backwards."""
    batch, laps = len(contexts), dict[tuple[int, str], list[float]]()
    with torch.inference_mode():
        engines = {}
        for name, eager in ((EAGER, True), (GRAPH, False)):
            cache = StaticCache.allocate(
                weights.config, batch, t_max, backend.device, weights.embed.dtype
            )
            model = Model(weights, cache.blocks())
            engines[name] = StaticEngine(model, cache, backend, eager=eager)

        def static(name: str) -> None:
            tokens = [1] * batch
            for step in range(STEPS):
                grown = [context + step for context in contexts]
                tokens = engines[name].run(decode_step(tokens, grown, t_max)).tolist()

        ways: dict[str, Callable[[], None]] = {
            EAGER: lambda: static(EAGER),
            GRAPH: lambda: static(GRAPH),
        }
        if no_kernels(backend) is None:
            mean = -(-sum(contexts) // batch)
            paged = FusedGraph(build_setup(backend, weights, batch, mean, t_max), 5, False, 1)
            paged.prepare()

            def with_pages() -> None:
                paged.rewind()
                for _ in range(STEPS):
                    paged.step()
                    paged.outputs[0][1].tolist()

            ways[PAGES] = with_pages
        for run in ways.values():
            run()  # captures, and warms up
        with no_garbage_collection():
            for number in range(ROUNDS):
                for name in list(ways)[:: -1 if number % 2 else 1]:
                    backend.synchronize()
                    began = time.perf_counter()
                    ways[name]()
                    took_us = (time.perf_counter() - began) * 1e6 / STEPS
                    laps.setdefault((batch, name), []).append(took_us)
    return {key: median_interval(times) for key, times in laps.items()}


# ---------------------------------------------------------------- what is said


def table_of(
    predicted: dict[tuple[int, str], tuple[float, float]], timed: dict[tuple[int, str], Interval]
) -> Table:
    """A line for each batch and way; what was not measured says so."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("batch", "", "columns needed", "predicted", "measured", "95%", "tokens/s"):
        table.add_column(head, justify="right" if head else "left", no_wrap=True)
    for (batch, name), (ms, needed) in predicted.items():
        row, us = ["not yet", "", ""], timed.get((batch, name))
        if us:
            spread = f"{us.low / 1e3:.3f} to {us.high / 1e3:.3f}"
            row = [f"{us.median / 1e3:.3f}", spread, f"{batch / us.median * 1e6:,.0f}"]
        table.add_row(str(batch), name, f"{needed:.0%}", f"{ms:.3f}", *row)
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
