"""Replay a trace of requests: what would this server have felt like?

  python -m mini_engine serve --mode FULL_AND_PIECEWISE
  python -m mini_engine serve --trace AzureLLMInferenceTrace_conv.csv --spec h100 --engine sglang
  python -m mini_engine serve --prefix-caching --shared-prefix 512 --share 0.6
  python -m mini_engine serve --kv-blocks 600 --preemption cheaper

Traces come as CSV in the format of the Azure LLM inference traces
(https://github.com/Azure/AzurePublicDataset: TIMESTAMP,ContextTokens,GeneratedTokens) or as JSON
lines (arrival_s, prompt_tokens, output_tokens), from a file or a pipe (--trace -). Without --trace
a small synthetic one runs.

The scheduler's rules are this engine's, token for token; steps are costed by the step-cost model
for a card, a host and an engine (--spec, --host, --engine). The median ITL shows its interval: how
far off steps launched in that way were, of sources that the fit had not seen. TTFT shows none, for
no prompt of anybody else was held against the model.

A trace says how long prompts were, not what stood in them: which of them begin alike is assumed
(--shared-prefix, --share). With --preemption swap the K and V of a preempted request wait in host
memory (--swap-space) and come back over the card's link; steps wait for these copies, nothing
overlaps. "cheaper" asks for each request whether computing again takes longer.

Between two arrivals or endings the batch does not change, so all those steps are taken in one
stride, in closed form: a trace of 200,000 steps takes about a second. With swapping or with a
prefix cache the engine's own scheduler runs, and a trace takes about twice or six times as long.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from mini_engine.cli import capture_sizes, options
from mini_engine.cli.serve_table import lines, rungs
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.engine.batch import PREEMPTIONS, SchedulerLimits
from mini_engine.serving.ladder_saving import optimal_ladder_saving
from mini_engine.serving.plan import plan_server, without_idle_blocks
from mini_engine.serving.report import ServeReport
from mini_engine.serving.request_trace import (
    SHIPPED_TRACE,
    Trace,
    read_trace,
    trace_name,
    with_shared_prefix,
)
from mini_engine.serving.simulate import simulate
from mini_engine.step.capacity import GIB
from mini_engine.step.hardware import DeviceSpec
from mini_engine.step.step_model import StepModel
from mini_engine.step.storage import stored_as
from mini_engine.step.swap_cost import SwapCost

MANY_PREFILLS = 200_000  # steps with a prompt in them; fewer take seconds
PREFILL_S = 2.5e-4  # to simulate one on a slow core
MOST_BLOCKS = 1_500_000  # simulated one by one: with its key each takes 600 bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, number = parser.add_argument, options.positive
    formats = "CSV or JSON lines; - is standard input (default: a synthetic one)"
    add("--trace", type=Path, default=SHIPPED_TRACE, metavar="FILE", help=formats)
    add("--skip-bad-rows", action="store_true", help="count bad rows of the trace and go on")
    options.add_shape(parser)
    options.add_spec(parser)
    options.add_style(parser)
    options.add_mode(parser)
    options.add_stored(parser)
    sizes = "capture sizes, in any order (default: vLLM's)"
    add("--ladder", type=options.whole_numbers, metavar="1,2,4", help=sizes)
    seqs = "requests that may run side by side (default: 256)"
    add("--max-num-seqs", type=number, default=256, metavar="N", help=seqs)
    tokens = "of a step: one of each running request, the rest for prompts (default: 8192)"
    add("--max-num-batched-tokens", type=number, default=8192, metavar="N", help=tokens)
    longest = "of a request, prompt and answer; where it ends, the answer is cut (default: the "
    add("--max-model-len", type=number, metavar="TOKENS", help=longest + "model's context)")
    block = "of the KV cache that are taken together (default: 16)"
    add("--block-size", type=number, default=16, metavar="TOKENS", help=block)
    add("--kv-blocks", type=number, metavar="N", help="no more than these (default: all that fit)")
    alike = "share the blocks of equal prefixes"
    add("--prefix-caching", action="store_true", help=alike)
    words = "a share of the prompts (--share) begins with the same so many tokens"
    add("--shared-prefix", type=number, default=0, metavar="TOKENS", help=words)
    add("--share", type=options.share, metavar="0..1", help="(default: 1)")
    words = "what happens to K and V of a preempted request (default: recompute)"
    add("--preemption", choices=PREEMPTIONS, default="recompute", help=words)
    words = "host memory for swapped requests (default: 4)"
    add("--swap-space", type=options.gibibytes, metavar="GIB", help=words)
    options.add_host_us(parser, help="CPU time between two steps")
    words = "draw the rung histogram: .png, .svg or .pdf"
    add("-o", "--out", type=options.picture, metavar="FILE", help=words)


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    began = time.perf_counter()
    swapping = args.preemption != "recompute"
    if args.share is not None and not args.shared_prefix:
        raise ValueError("--share without --shared-prefix does nothing: say how long the prefix is")
    if args.swap_space and not swapping:
        raise ValueError("--swap-space without --preemption swap or cheaper does nothing: add one")
    if args.out:
        options.check_not_onto(args.out, args.trace)
    share = 1.0 if args.share is None else args.share
    shape, spec = options.shape_and_spec(args)
    stored = stored_as(shape, args.quant, args.kv_dtype)
    capture_sizes.check_limits(args.max_num_seqs, args.max_num_batched_tokens)
    sizes = default_capture_sizes(
        args.max_num_seqs, args.max_num_batched_tokens, capture_sizes=args.ladder, mode=args.mode
    )
    plan = plan_server(
        shape, spec, args.mode, sizes,
        style=args.style or spec.ops,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        block_size=args.block_size,
        max_model_len=args.max_model_len,
        stored=stored,
    )  # fmt: skip
    trace = _read(args, console)
    requests = with_shared_prefix(trace.requests, args.shared_prefix, share)
    costs = StepModel(shape, spec, args.style or spec.ops, stored)
    copies = SwapCost(costs, plan.dispatcher, args.max_num_batched_tokens, args.block_size)
    host_bytes = int((args.swap_space or 4) * GIB)
    if swapping and host_bytes < copies.block_bytes:
        raise ValueError(
            f"--swap-space {args.swap_space or 4:g} holds no block: one of "
            f"{args.block_size:,} tokens takes {copies.block_bytes:,} bytes"
        )
    limits = replace(
        plan.limits,
        num_blocks=min(plan.limits.num_blocks, 1 + (args.kv_blocks or plan.limits.num_blocks)),
        prefix_caching=args.prefix_caching,
        preemption=args.preemption,
        host_blocks=host_bytes // copies.block_bytes if swapping else 0,
    )
    simulated = limits
    if limits.prefix_caching or swapping:  # else blocks are only counted
        simulated = without_idle_blocks(limits, trace.requests.lengths)
        _check_blocks(simulated)
    most = limits.max_model_len  # a longer prompt is not served
    tokens = sum(prompt for prompt, _ in trace.requests.lengths if prompt < most)
    prefills = tokens // limits.max_num_batched_tokens
    if prefills > MANY_PREFILLS:
        console.print(
            f"Prompts of {tokens:,} tokens at {limits.max_num_batched_tokens:,} a step "
            f"take {prefills:,} steps or more, and each of those is simulated by itself: "
            f"expect up to {max(2, prefills * PREFILL_S / 60):,.0f} minutes.",
            soft_wrap=True,
        )
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("serving", total=len(trace.requests))
        report = simulate(
            requests, costs, simulated, plan.dispatcher, copies=copies,
            progress=lambda read: progress.update(task, completed=read),
        )  # fmt: skip
    if not report.requests:
        raise ValueError(
            f"{trace_name(args.trace)}: none of {len(trace.requests)} requests fits a context of "
            f"{limits.max_model_len} tokens and a cache of {limits.num_blocks - 1} blocks of "
            f"{args.block_size}, with room for an answer: raise --max-model-len or --kv-blocks"
        )
    saving = optimal_ladder_saving(report, costs, plan.dispatcher)
    if args.out:
        from mini_engine import plots  # importing matplotlib takes as long as running a trace

        caption = (
            f"{Path(trace_name(args.trace)).name}: {shape.name} on one {spec.name}, {args.mode}"
        )
        caption = f"{plots.PREDICTED}: {caption}"
        plots.rung_histogram(report.steps_by_rung, args.out, caption=caption)
    wall_s = time.perf_counter() - began
    return {
        "trace": trace_name(args.trace),
        "shape": shape.name,
        **options.told(spec),
        "style": args.style or spec.ops,
        "quant": stored.quant,
        "kv_dtype": stored.kv_dtype,
        "rows_skipped": trace.num_skipped,
        "first_row_skipped": trace.first_skipped,
        "preemption": args.preemption,
        "host_blocks": limits.host_blocks,
        "prefix_caching": args.prefix_caching,
        "shared_prefix": args.shared_prefix,
        "share": share if args.shared_prefix else 0.0,
        **report.to_dict(),
        "kv_blocks": limits.num_blocks - 1,
        "itl_p50_interval": _interval(report, spec),
        "left_out_sizes": capture_sizes.left_out(args.ladder, sizes, args.mode),
        "max_num_batched_tokens": args.max_num_batched_tokens,
        "steps_by_rows": steps_by_rows(report),
        "graphs": plan.graph_costs.graphs,
        "graph_memory_bytes": plan.graph_costs.memory_bytes,
        "capture_us": plan.graph_costs.capture_us,
        "optimal_ladder": asdict(saving) if saving else None,
        "wall_s": wall_s,
        "simulated_steps_per_s": report.steps / wall_s,
    }


def _check_blocks(limits: SchedulerLimits) -> None:
    """Raise ValueError for more blocks than memory should hold, each as an object."""
    blocks = limits.num_blocks + limits.host_blocks
    if blocks > MOST_BLOCKS:
        raise ValueError(
            f"{limits.num_blocks - 1:,} KV blocks and {limits.host_blocks:,} of host memory: a "
            "prefix cache or swapping is simulated block by block, and at most "
            f"{MOST_BLOCKS:,} of them: raise --block-size (it is {limits.block_size}), or give "
            "fewer --kv-blocks or less --swap-space"
        )


def _read(args: argparse.Namespace, console: Console) -> Trace:
    """The trace, with a bar: ten million lines take most of a minute."""
    size = args.trace.stat().st_size if args.trace.is_file() else None  # a pipe has none
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading", total=size)
        return read_trace(
            args.trace,
            skip_bad_rows=args.skip_bad_rows,
            progress=lambda read: progress.update(task, completed=read),
        )


def steps_by_rows(report: ServeReport) -> dict[int, int]:
    """Rows before padding -> steps: what `ladder --histogram` takes."""
    counts: Counter[int] = Counter()
    for ran, (steps, _) in report.ran.items():
        counts[ran.rows] += steps
    return dict(sorted(counts.items()))


def show(result: dict[str, Any], console: Console) -> None:
    console.print(
        f"[bold]{result['trace']}[/bold]: {result['shape']} on {options.on(result)}, "
        f"{result['mode']}, op list {result['style']}, weights {result['quant']}, cache "
        f"{result['kv_dtype']}, predicted"
    )
    if result["rows_skipped"]:
        skipped = f"{result['rows_skipped']} bad rows skipped; the first: "
        console.print(f"[yellow]{skipped}{result['first_row_skipped']}[/yellow]")
    if result["left_out_sizes"]:
        left_out = result["left_out_sizes"]
        console.print(capture_sizes.told(left_out, result["max_num_batched_tokens"]))
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for label, value in lines(result):
        table.add_row(label, value)
    console.print(table)
    console.print(rungs(result))
    if result["itl_p50_interval"]:
        console.print(f"{options.WITHIN} No prompt was held against a measurement.")
    console.print(
        f"{result['steps']:,} steps in {result['wall_s']:.2f} s: "
        f"{result['simulated_steps_per_s']:,.0f} simulated steps a second, reading included"
    )


def _interval(report: ServeReport, spec: DeviceSpec) -> dict[str, float] | None:
    """Of the median ITL, as sure as steps of the mode that most steps ran in."""
    if report.itl_p50_us is None:
        return None
    mode = max(report.steps_by_mode, key=lambda mode: report.steps_by_mode[mode])
    return options.interval(spec, report.itl_p50_us, str(mode))
