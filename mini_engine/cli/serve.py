"""Replay a trace of requests: what would this server have felt like?

  python -m mini_engine serve --trace AzureLLMInferenceTrace_conv.csv --spec h100 --engine sglang
  python -m mini_engine serve --trace log.csv --columns time_ms=received,prompt=in,new=out
  python -m mini_engine serve --shared-prefix 512 --share 0.6
  python -m mini_engine serve --kv-blocks 600

A trace is CSV with a header, or JSON lines. Those of Azure, BurstGPT, Mooncake and `vllm bench
serve --save-detailed` are known by their columns; --columns names those of any other. A time is a
number of seconds (time_ms=: of milliseconds), or a date and time. Without times all arrive at once.

The engine's own scheduler chooses every batch. Which prompts begin alike no trace tells: it is
assumed (--shared-prefix, --share), and the prefix cache is then on.
"""

import time

from mini_engine.cli import options
from mini_engine.cli.terminal import Args, Found, Screen, form
from mini_engine.serving.ladder_cost import optimal_ladder_saving
from mini_engine.serving.replay import replay
from mini_engine.serving.request_trace import read_trace, with_shared_prefix
from mini_engine.step.explain import Way

LINES = (  # what must be there for it, a line's name, what it says
    ("at_once", "arrival times", "none in the trace: all requests arrive at once"),
    ("", "requests served", "{0.requests:,}"),
    ("", "refused / cut at the context's end", "{0.refused:,} / {0.truncated:,}"),
    ("failed_in_trace", "left out: got no token", "{0.failed_in_trace:,}"),
    ("", "TTFT p50 / p99", "{0.ttft_p50_us:ms} ms / {0.ttft_p99_us:ms} ms"),
    ("", "ITL p50 / p99", "{0.itl_p50_us:ms} ms / {0.itl_p99_us:ms} ms"),
    ("p50", "  p50, with its interval", "{p50}"),
    ("", "throughput", "{0.tokens_per_s:,.0f} tokens/s, {0.requests_per_s:.2f} requests/s"),
    ("", "steps by run-time mode", "{modes}"),
    ("", "padding waste", "{0.padding_waste:.1%} of {rows:,} rows"),
    ("", "preemptions", "{0.preemptions:,} ({again:,} tokens computed again)"),
    ("", "KV blocks, peak of all", "{0.kv_blocks_peak:,} of {0.kv_blocks:,}"),
    ("", "graphs", "{0.graphs.graphs:,}"), ("", "capturing them", "{captured}"),
    ("shared_prefix", "prefix cache: hit rate", "{0.prefix_hit_rate:.1%}"),
    ("best", "the optimal ladder of {rungs} rungs saves", "{best.saved_rows:,} padded rows, "
     "{best.saved_us:s} s, {best.saved_share:.2%} of the busy time"),
    ("best", "  its rungs", "{sizes}"))  # fmt: skip
SHARED = "trace shape spec mode stored limits sizes"
OPTIONS: options.Rows = {
    "--kv-blocks N": (options.positive, None, "at most (default: all that fit)")}  # fmt: skip


def run(args: Args, console: Screen) -> Found:
    began, shared = time.perf_counter(), options.shared_prefix(args)
    server = options.server(args)
    sized = server.sized(args.mode, args.capture_sizes, kv_blocks=args.kv_blocks,
                         prefix_caching=shared[0] > 0)  # fmt: skip
    limits, dispatcher = sized.limits, sized.dispatcher
    with console.status("serving"):
        trace = read_trace(args.trace, args.columns)
        report = replay(with_shared_prefix(trace, *shared), server.costs, limits, dispatcher)
    if not report.requests:
        cache = f"a cache of {limits.num_blocks - 1} blocks of {limits.block_size}"
        raise ValueError(f"{args.trace}: none of {len(trace)} requests fits {limits.max_model_len} "
                         f"tokens of context and {cache}: raise --kv-blocks")  # fmt: skip
    interval = None
    if report.itl_p50_us is not None:
        # as sure as steps of the mode that most steps ran in, of the mean batch that only decoded
        mode = max(report.steps_by_mode, key=report.steps_by_mode.__getitem__)
        ran_alone = [(ran.rows, n) for ran, (n, _) in report.ran.items() if ran.uniform] or [(1, 1)]
        rows, steps = sum(rows * n for rows, n in ran_alone), sum(n for _, n in ran_alone)
        interval = Way.of(server.spec, report.itl_p50_us, mode, round(rows / steps))
    wall_s = time.perf_counter() - began
    return {
        **options.told(server), "style": server.spec.ops,
        "failed_in_trace": trace.failed, "arrival_times": trace.timed, **report.to_dict(),
        "itl_p50_interval": interval, "graphs": sized.graph_costs,
        "optimal_ladder": optimal_ladder_saving(report, server.costs, dispatcher),
        "wall_s": wall_s, "simulated_steps_per_s": report.steps / wall_s}  # fmt: skip


def show(r: Args, console: Screen) -> None:
    sizes = r.optimal_ladder.capture_sizes if r.optimal_ladder else ()
    told = {
        "modes": ", ".join(f"{m} {n / r.steps:.1%}" for m, n in r.steps_by_mode.items() if n),
        "rows": r.rows + r.padded_rows, "again": r.recomputed_tokens - r.recompute_tokens_saved,
        "p50": r.itl_p50_interval and options.ms(r.itl_p50_interval),
        "captured": options.capture(r.graphs),
        "at_once": not r.arrival_times, "best": r.optimal_ladder, "rungs": len(sizes),
        "sizes": ", ".join(map(str, sizes))}  # fmt: skip
    console.print(form("{0.trace}: {0.shape} on {1}, {0.mode}, op list {0.style}, weights {0.quant}"
                       ", cache {0.kv_dtype}, predicted", r, options.on(r)))  # fmt: skip
    for needs, name, value in LINES:
        if not needs or {**vars(r), **told}[needs]:
            console.print(f"   {form(name, r, **told):<37} {form(value, r, **told)}")
    console.print(f"{options.WITHIN}\nNo prompt was held against a measurement.")
    console.print(form("{0.steps:,} steps in {0.wall_s:.2f} s: {0.simulated_steps_per_s:,.0f} "
                       "simulated steps a second, reading included", r))  # fmt: skip
