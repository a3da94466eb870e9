"""Which batch sizes does vLLM 0.33 capture, and what does a batch between two of them waste?

  python -m mini_engine ladder --max-num-seqs 256 --max-num-batched-tokens 8192 --batch 33

A graph replays only the shapes it was captured with. So an engine captures a ladder of sizes at
start-up and pads every batch up to the next rung. Rungs cost start-up time and memory, gaps between
them cost padding. In mode FULL_AND_PIECEWISE each size is captured in pieces, one more than the
model has layers, for steps with prompts in them, and those up to --max-num-seqs once more whole,
for steps that only decode. In brackets: as far off as published start-ups were.
"""

import textwrap

from mini_engine.cli import options
from mini_engine.cli.terminal import Args, Found, Screen
from mini_engine.dispatch.capture_report import explain_batch, in_runs
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.serving.ladder_cost import LadderCosts

SHARED = "limits mode shape spec sizes"
OPTIONS: options.Rows = {
    "--spec-tokens N": (options.counted, 0, "speculative tokens a request"),
    "--max-capture-size N": (options.positive, None, "another ceiling"),
    "--batch N": (options.positive, None, "explain this decode batch")}  # fmt: skip


def run(args: Args, console: Screen) -> Found:
    server, query_len = options.server(args), 1 + args.spec_tokens
    shape, spec, mode, most = server.config, server.spec, args.mode, args.max_num_seqs
    sizes = default_capture_sizes(
        most, args.max_num_batched_tokens, mode=mode, capture_sizes=args.capture_sizes,
        max_capture_size=args.max_capture_size, num_speculative_tokens=args.spec_tokens,
    )  # fmt: skip
    costs = LadderCosts(shape, spec, mode, most, decode_query_len=query_len).of(sizes)
    taken = costs.memory_bytes + server.stored.held + spec.reserved_bytes
    dispatcher = GraphDispatcher(mode, sizes, most, query_len)
    return {
        **options.told(server), "capture_sizes": sizes, "layers": shape.num_layers,
        "costs": costs, "fits": taken <= spec.vram_bytes,
        "explained": explain_batch(dispatcher, args.batch) if args.batch else None}  # fmt: skip


def show(r: Args, console: Screen) -> None:
    say, costs = console.print, r.costs
    limits = f"{r.max_num_seqs:,}, max_num_batched_tokens {r.max_num_batched_tokens:,}"
    say(f"vLLM 0.33, {r.mode}, max_num_seqs {limits}: {len(r.capture_sizes)} capture sizes\n"
        f"   {in_runs(r.capture_sizes) or 'no graphs: every step is eager'}\n\n"
        f"{r.shape}, {r.layers} layers, on {options.on(r)}:")  # fmt: skip
    if rungs := costs.piecewise_rungs:
        pieces = f"{r.layers + 1} pieces = {costs.piecewise_graphs:,} graphs"
        say(f"   PIECEWISE  {rungs} sizes × {pieces}")
    if costs.full_graphs:
        say(f"   FULL       {costs.full_graphs} graphs")
    say(f"   together   {costs.graphs:,} graphs: {options.capture(costs)}, predicted")
    if not r.fits:
        say(f"With the weights they do not fit the {r.spec}.")
    if told := r.explained:
        say(f"\n{textwrap.fill(told['explanation'], 100)}\n   when all decode: {told['decode']}\n"
            f"   with a prompt among them: {told['mixed']}")  # fmt: skip
