"""Replay a trace of requests: what would this server have felt like?

  python -m mini_engine serve --trace AzureLLMInferenceTrace_conv.csv --spec h100 --engine sglang
  python -m mini_engine serve --trace log.csv --columns time_ms=received,prompt=in,new=out
  python -m mini_engine serve --shared-prefix 512 --share 0.6
  python -m mini_engine serve --kv-blocks 600 --preemption cheaper

A trace is CSV with a header, or JSON lines, from a file or /dev/stdin. Those of Azure, BurstGPT,
Mooncake and `vllm bench serve --save-detailed` are known by their columns; --columns names those of
any other. A time is a number of seconds, of milliseconds with time_ms=, or a date and time. Without
times all requests arrive at once; those that got no token are left out and counted.

The engine's own scheduler chooses every batch. Which prompts begin alike no trace tells: it is
assumed (--shared-prefix, --share), and the prefix cache is then on. With --preemption swap the K
and V of a preempted request wait in 4 GiB of host memory, and steps wait for the copies; "cheaper"
asks for each request whether computing again takes longer.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from mini_engine.cli import options
from mini_engine.engine.batch import PREEMPTIONS
from mini_engine.serving.ladder_cost import optimal_ladder_saving
from mini_engine.serving.replay import replay
from mini_engine.serving.request_trace import SHIPPED_TRACE, Columns, read_trace, with_shared_prefix
from mini_engine.serving.swap_cost import SwapCost

HOST_BYTES = 4 << 30  # of host memory, for requests that are swapped out
NAMED = "time=NAME,prompt=NAME,new=NAME"  # a trace's columns


def columns(word: str) -> Columns:
    """`time=at,prompt=in,new=out` as the columns of a trace; `time_ms=` for milliseconds."""
    named = dict(part.partition("=")[::2] for part in word.split(","))
    units_us = {"time": 1e6, "time_ms": 1e3}
    times = [key for key in named if key in units_us]
    if {*named} - {*times} != {"prompt", "new"} or len(times) > 1 or not all(named.values()):
        raise argparse.ArgumentTypeError(
            f"{word!r:.60}: expected {NAMED}, with time_ms= for milliseconds, or without a time"
        )
    time = times[0] if times else None
    return Columns(time and named[time], named["prompt"], named["new"], units_us[time or "time"])


SHARED = "shape spec mode stored limits sizes"
OPTIONS: options.Rows = {
    "--trace FILE": (Path, SHIPPED_TRACE, "CSV or JSON lines (default: a synthetic one)"),
    f"--columns {NAMED}": (columns, None, "the trace's (default: those of a trace that is known)"),
    "--kv-blocks N": (options.positive, None, "no more than these (default: all that fit)"),
    "--shared-prefix TOKENS": (options.counted, 0, "with which a share of the prompts begins"),
    "--share 0..1": (options.share, None, "of the prompts (default: 1)"),
    "--preemption": (PREEMPTIONS, "recompute", "what becomes of a preempted request's K and V"),
}


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    began, sharing = time.perf_counter(), args.shared_prefix > 0
    if args.share is not None and not sharing:
        raise ValueError("--share without --shared-prefix does nothing: say how long the prefix is")
    args.share = 1.0 if args.share is None else args.share
    server = options.server(args)
    sized = server.sized(args.mode, args.capture_sizes)
    options.name_dropped(args, sized.dispatcher.sizes, console)
    with console.status("reading the trace"):
        trace = read_trace(args.trace, args.columns)
    copies = SwapCost(
        server.costs, sized.dispatcher, args.max_num_batched_tokens, sized.limits.block_size
    )
    blocks, swapping = sized.limits.num_blocks, args.preemption != "recompute"
    limits = replace(
        sized.limits, num_blocks=min(blocks, 1 + (args.kv_blocks or blocks)),
        prefix_caching=sharing, preemption=args.preemption,
        host_blocks=HOST_BYTES // copies.block_bytes if swapping else 0,
    )  # fmt: skip
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        read = progress.track(trace, description="serving")
        requests = with_shared_prefix(read, args.shared_prefix, args.share)
        report = replay(requests, server.costs, limits, sized.dispatcher, copies=copies)
    if not report.requests:
        raise ValueError(
            f"{args.trace}: none of {len(trace)} requests fits a context of "
            f"{limits.max_model_len} tokens and a cache of {limits.num_blocks - 1} blocks of "
            f"{limits.block_size}, with room for an answer: raise --kv-blocks"
        )
    interval = None
    if report.itl_p50_us is not None:
        # as sure as steps of the mode that most steps ran in, of the mean batch that only decoded
        mode = max(report.steps_by_mode, key=report.steps_by_mode.__getitem__)
        decodes = {ran.rows: n for ran, (n, _) in report.ran.items() if ran.uniform} or {1: 1}
        batch = round(sum(rows * n for rows, n in decodes.items()) / sum(decodes.values()))
        interval = options.interval(server.spec, report.itl_p50_us, mode, batch)
    wall_s = time.perf_counter() - began
    return {
        **options.told(server), "style": server.spec.ops, "host_blocks": limits.host_blocks,
        "failed_in_trace": trace.failed, "arrival_times": trace.timed, **report.to_dict(),
        "itl_p50_interval": interval, "graphs": sized.graph_costs,
        "optimal_ladder": optimal_ladder_saving(report, server.costs, sized.dispatcher),
        "wall_s": wall_s, "simulated_steps_per_s": report.steps / wall_s,
    }  # fmt: skip


def show(r: argparse.Namespace, console: Console) -> None:
    console.print(
        f"{r.trace}: {r.shape} on {options.on(r)}, {r.mode}, op list {r.style}, "
        f"weights {r.quant}, cache {r.kv_dtype}, predicted"
    )

    def ms(*times_us: float | None) -> str:
        told = ("–" if us is None else f"{options.two_digits(us / 1e3)} ms" for us in times_us)
        return " / ".join(told)

    again = r.recomputed_tokens - r.recompute_tokens_saved
    modes = ", ".join(f"{mode} {n / r.steps:.1%}" for mode, n in r.steps_by_mode.items() if n)
    best, p50, swaps = r.optimal_ladder, r.itl_p50_interval, r.preemption != "recompute"
    lines: list[tuple[Any, str, Any]] = [  # what is shown only if, its name, what it is
        (not r.arrival_times, "arrival times", "none in the trace: all requests arrive at once"),
        (1, "requests served", f"{r.requests:,}"),
        (1, "refused / cut at the context's end", f"{r.refused:,} / {r.truncated:,}"),
        (r.failed_in_trace, "left out: got no token", f"{r.failed_in_trace:,}"),
        (1, "TTFT p50 / p99", ms(r.ttft_p50_us, r.ttft_p99_us)),
        (1, "ITL p50 / p99", ms(r.itl_p50_us, r.itl_p99_us)),
        (p50, "  p50, with its interval", p50 and options.ms(p50)),
        (1, "throughput",
         f"{r.tokens_per_s:,.0f} tokens/s, {r.requests_per_s:.2f} requests/s"),
        (1, "steps by run-time mode", modes),
        (1, "padding waste", f"{r.padding_waste:.1%} of {r.rows + r.padded_rows:,} rows"),
        (1, "preemptions", f"{r.preemptions:,} ({again:,} tokens computed again)"),
        (1, "KV blocks, peak of all", f"{r.kv_blocks_peak:,} of {r.kv_blocks:,}"),
        (1, "graphs", f"{r.graphs.graphs:,}"),
        (1, "capturing them", options.capture(r.graphs)),
        (swaps, f"swapped ({r.preemption})",
         f"{r.swaps:,}, {r.swapped_bytes / 1e9:.2f} GB in {ms(r.swap_us)}"),
        (swaps, "  saved by it", ms(r.swap_saved_us)),
        (r.shared_prefix, "prefix cache: hit rate", f"{r.prefix_hit_rate or 0:.1%}"),
        (best, f"the optimal ladder of {best and len(best.capture_sizes)} rungs saves",
         best and f"{best.saved_rows:,} padded rows, {best.saved_us / 1e6:,.2f} s, "
         f"{best.saved_share:.2%} of the busy time"),
        (best, "  its rungs", best and ", ".join(map(str, best.capture_sizes))),
    ]  # fmt: skip
    for known, name, value in lines:
        if known:
            console.print(f"   {name:<37} {value}")
    console.print(
        f"{options.WITHIN}\nNo prompt was held against a measurement.\n{r.steps:,} steps in "
        f"{r.wall_s:.2f} s: {r.simulated_steps_per_s:,.0f} simulated steps a second, reading "
        "included"
    )
