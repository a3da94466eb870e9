"""Replay a trace of requests: what would this server have felt like?

  python -m mini_engine serve --mode FULL_AND_PIECEWISE
  python -m mini_engine serve --trace AzureLLMInferenceTrace_conv.csv --spec h100 --engine sglang
  python -m mini_engine serve --trace log.csv --columns time_ms=received,prompt=in,new=out
  python -m mini_engine serve --shared-prefix 512 --share 0.6
  python -m mini_engine serve --kv-blocks 600 --preemption cheaper

A trace is CSV with a header, or JSON lines, from a file or a pipe (--trace -). The files of the
Azure LLM inference traces of 2023 and 2024, BurstGPT, Mooncake and `vllm bench serve --save-result
--save-detailed` are known by their columns. For any other file --columns says what its columns are
called. A time is a number of seconds, of milliseconds with time_ms=, or a date and time such as
2023-11-16 18:15:46.6805900. Requests without a time all arrive at once, and those that got no token
are left out and counted. Without --trace a small synthetic trace runs.

The engine's own scheduler chooses every batch; steps are costed for a card, a host and an engine.
Between two arrivals or endings the batch does not change, so all those steps are taken in one
stride, in closed form. The median ITL shows its interval: how far off steps launched in that way
were, of sources that the fit had not seen.

A trace says how long prompts were, not what stood in them: which of them begin alike is assumed
(--shared-prefix, --share), and the prefix cache is then on. With --preemption swap the K and V of a
preempted request wait in 4 GiB of host memory and come back over the card's link; steps wait for
these copies. "cheaper" asks for each request whether computing again takes longer.
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
from mini_engine.cli.terminal import table
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.engine.batch import PREEMPTIONS
from mini_engine.serving.ladder_cost import optimal_ladder_saving, size_server
from mini_engine.serving.replay import replay
from mini_engine.serving.request_trace import SHIPPED_TRACE, read_trace, with_shared_prefix
from mini_engine.serving.swap_cost import SwapCost
from mini_engine.step.step_model import StepModel
from mini_engine.step.storage import stored_as

HOST_BYTES = 4 << 30  # of host memory, for requests that are swapped out


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, number = parser.add_argument, options.positive
    formats = "CSV or JSON lines; - is standard input (default: a synthetic one)"
    add("--trace", type=Path, default=SHIPPED_TRACE, metavar="FILE", help=formats)
    options.add(parser, "columns", "shape", "spec", "mode", "stored", "limits")
    sizes = "capture sizes, in any order (default: vLLM's)"
    add("--ladder", type=options.whole_numbers, metavar="1,2,4", help=sizes)
    add("--kv-blocks", type=number, metavar="N", help="no more than these (default: all that fit)")
    alike = "share the blocks of equal prefixes"
    add("--prefix-caching", action="store_true", help=alike)
    words = "a share of the prompts (--share) begins with the same tokens; caches prefixes"
    add("--shared-prefix", type=number, default=0, metavar="TOKENS", help=words)
    add("--share", type=options.share, metavar="0..1", help="(default: 1)")
    words = "what happens to K and V of a preempted request (default: recompute)"
    add("--preemption", choices=PREEMPTIONS, default="recompute", help=words)


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    began = time.perf_counter()
    swapping = args.preemption != "recompute"
    sharing = args.prefix_caching or args.shared_prefix > 0
    if args.share is not None and not args.shared_prefix:
        raise ValueError("--share without --shared-prefix does nothing: say how long the prefix is")
    share = (1.0 if args.share is None else args.share) if args.shared_prefix else 0.0
    shape, spec = options.shape_and_spec(args)
    stored = stored_as(shape, args.quant, args.kv_dtype)
    sizes = default_capture_sizes(
        args.max_num_seqs, args.max_num_batched_tokens, capture_sizes=args.ladder, mode=args.mode
    )
    options.name_dropped(args, args.ladder, sizes, console)
    server = size_server(
        shape, spec, args.mode, sizes,
        stored=stored,
        max_num_seqs=args.max_num_seqs, max_num_batched_tokens=args.max_num_batched_tokens,
    )  # fmt: skip
    with console.status("reading the trace"):
        trace = read_trace("/dev/stdin" if str(args.trace) == "-" else args.trace, args.columns)
    costs = StepModel(shape, spec, stored)
    copies = SwapCost(
        costs, server.dispatcher, args.max_num_batched_tokens, server.limits.block_size
    )
    limits = replace(
        server.limits,
        num_blocks=min(server.limits.num_blocks, 1 + (args.kv_blocks or server.limits.num_blocks)),
        prefix_caching=sharing,
        preemption=args.preemption,
        host_blocks=HOST_BYTES // copies.block_bytes if swapping else 0,
    )
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        read = progress.track(trace, description="serving")
        requests = with_shared_prefix(read, args.shared_prefix, share)
        report = replay(requests, costs, limits, server.dispatcher, copies=copies)
    if not report.requests:
        raise ValueError(
            f"{args.trace}: none of {len(trace)} requests fits a context of "
            f"{limits.max_model_len} tokens and a cache of {limits.num_blocks - 1} blocks of "
            f"{limits.block_size}, with room for an answer: raise --kv-blocks"
        )
    saving = optimal_ladder_saving(report, costs, server.dispatcher)
    by_mode = report.steps_by_mode
    # as sure as steps of the mode that most steps ran in, of the mean batch that only decoded
    p50, mode = report.itl_p50_us, max(by_mode, key=by_mode.__getitem__)
    decodes = [(ran.rows, steps) for ran, (steps, _) in report.ran.items() if ran.uniform] or [
        (1, 1)
    ]
    batch = round(sum(rows * n for rows, n in decodes) / sum(n for _, n in decodes))
    wall_s = time.perf_counter() - began
    return {
        "shape": shape.name,
        **options.told(spec),
        "style": spec.ops,
        "quant": stored.quant,
        "kv_dtype": stored.kv_dtype,
        "host_blocks": limits.host_blocks,
        "prefix_caching": sharing,
        "share": share,
        "failed_in_trace": trace.failed,
        "arrival_times": trace.timed,
        **report.to_dict(),
        "itl_p50_interval": None if p50 is None else options.interval(spec, p50, mode, batch),
        "graphs": server.graph_costs,
        "optimal_ladder": saving,
        "wall_s": wall_s,
        "simulated_steps_per_s": report.steps / wall_s,
    }


def show(result: dict[str, Any], console: Console) -> None:
    r, steps = result, result["steps"]
    console.print(
        f"[bold]{r['trace']}[/bold]: {r['shape']} on {options.on(r)}, {r['mode']}, op list "
        f"{r['style']}, weights {r['quant']}, cache {r['kv_dtype']}, predicted"
    )

    def ms(*keys: str) -> str:
        return " / ".join(
            "–" if r[key] is None else f"{options.two_digits(r[key] / 1e3)} ms" for key in keys
        )

    again = r["recomputed_tokens"] - r["recompute_tokens_saved"]
    modes = ", ".join(f"{mode} {n / steps:.1%}" for mode, n in r["steps_by_mode"].items() if n)
    lines = [
        ("requests served", f"{r['requests']:,}"),
        ("refused / cut at the context's end", f"{r['refused']:,} / {r['truncated']:,}"),
        ("TTFT p50 / p99", ms("ttft_p50_us", "ttft_p99_us")),
        ("ITL p50 / p99", ms("itl_p50_us", "itl_p99_us")),
        ("throughput", f"{r['tokens_per_s']:,.0f} tokens/s, {r['requests_per_s']:.2f} requests/s"),
        ("steps by run-time mode", modes),
        ("padding waste", f"{r['padding_waste']:.1%} of {r['rows'] + r['padded_rows']:,} rows"),
        ("preemptions", f"{r['preemptions']:,} ({again:,} tokens computed again)"),
        ("KV blocks, peak of all", f"{r['kv_blocks_peak']:,} of {r['kv_blocks']:,}"),
        ("graphs", f"{r['graphs'].graphs:,}"),
        ("capturing them", options.capture(r["graphs"])),
    ]
    if r["itl_p50_interval"]:
        lines.insert(4, ("  p50, with its interval", options.ms(r["itl_p50_interval"])))
    if r["failed_in_trace"]:
        lines.insert(2, ("left out: got no token", f"{r['failed_in_trace']:,}"))
    if not r["arrival_times"]:
        lines.insert(0, ("arrival times", "none in the trace: all requests arrive at once"))
    if r["preemption"] != "recompute":
        copied = f"{r['swapped_bytes'] / 1e9:,.2f} GB in {ms('swap_us')}"
        lines.append((f"swapped ({r['preemption']})", f"{r['swaps']:,}, {copied}"))
        lines.append(("  saved against computing again", ms("swap_saved_us")))
    if r["prefix_caching"]:
        alike = f"{r['share']:.0%} of them, {r['shared_prefix']:,} tokens"
        saved = f"{r['prefill_tokens_saved']:,} of {r['prompt_tokens']:,} prompt tokens"
        lines.append(("prompts alike, as assumed", alike))
        lines.append(("prefix cache: hit rate", f"{r['prefix_hit_rate']:.1%}"))
        lines.append(("  prefill saved", saved))
    if best := r["optimal_ladder"]:
        saved = f"{best.saved_rows:,} padded rows, {best.saved_us / 1e6:,.2f} s, "
        saved += f"{best.saved_share:.2%} of the busy time"
        lines.append((f"the optimal ladder of {len(best.capture_sizes)} rungs saves", saved))
        lines.append(("  its rungs", ", ".join(map(str, best.capture_sizes))))
    for name, value in lines:
        console.print(f"   {name:<37} {value}", soft_wrap=True)
    counts = [  # eager steps have no rung
        (count, mode, rung)
        for mode, by_rung in r["steps_by_rung"].items() if mode != "NONE"
        for rung, count in by_rung.items()
    ]  # fmt: skip
    rows = [
        (mode, rung, f"{count:,}", f"{count / steps:.1%}")
        for count, mode, rung in sorted(counts, reverse=True)[:10]
    ]
    console.print(table(("<most steps ran at", "rung", "steps", "share"), rows))
    console.print(
        f"{options.WITHIN} No prompt was held against a measurement.\n"
        f"{steps:,} steps in {r['wall_s']:.2f} s: {r['simulated_steps_per_s']:,.0f} simulated "
        "steps a second, reading included"
    )
