"""Which batch sizes does vLLM 0.33 capture, and what does a batch between two of them waste?

  python -m mini_engine ladder --max-num-seqs 256 --max-num-batched-tokens 8192 --batch 33

A graph replays only the shapes it was captured with. So an engine captures a ladder of sizes at
start-up and pads every batch up to the next rung. Rungs cost start-up time and memory, gaps between
them cost padding. In mode FULL_AND_PIECEWISE each size is captured in pieces, one more than the
model has layers, for steps with prompts in them, and those up to --max-num-seqs once more whole,
for steps that only decode. In brackets: as far off as published start-ups were.
"""

import textwrap
from collections.abc import Sequence

from mini_engine.cli import options
from mini_engine.cli.terminal import Args, Found, Screen
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.ladder import CaptureLadder
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.serving.ladder_cost import LadderCosts

SHARED = "limits mode shape spec sizes"
OPTIONS: options.Rows = {
    "--spec-tokens N": (options.counted, 0, "speculative tokens a request"),
    "--max-capture-size N": (options.positive, None, "another ceiling"),
    "--batch N": (options.positive, None, "explain this decode batch"),
}


def run(args: Args, console: Screen) -> Found:
    server, query_len = options.server(args), 1 + args.spec_tokens
    shape, spec, mode, most = server.config, server.spec, args.mode, args.max_num_seqs
    sizes = default_capture_sizes(
        most, args.max_num_batched_tokens, mode=mode, capture_sizes=args.capture_sizes,
        max_capture_size=args.max_capture_size, num_speculative_tokens=args.spec_tokens,
    )  # fmt: skip
    options.name_dropped(args, sizes, console)
    costs = LadderCosts(shape, spec, mode, most, decode_query_len=query_len).of(sizes)
    taken = costs.memory_bytes + server.stored.held + spec.reserved_bytes
    dispatcher = GraphDispatcher(mode, sizes, most, query_len)
    return {
        **options.told(server), "capture_sizes": sizes, "layers": shape.num_layers,
        "costs": costs, "fits": taken <= spec.vram_bytes,
        "explained": explain_batch(dispatcher, args.batch) if args.batch else None}  # fmt: skip


def explain_batch(dispatcher: GraphDispatcher, batch: int) -> dict[str, str]:
    """Why a decode batch runs at its rung, and how the dispatcher runs it."""
    most, query_len = dispatcher.max_num_seqs, dispatcher.decode_query_len
    if batch > most:
        raise ValueError(f"--batch {batch}: no step has more than {most}: raise --max-num-seqs")
    rows, says = batch * query_len, "Without graphs every batch runs eagerly, unpadded."
    decode, mixed = dispatcher.dispatch(batch, rows, query_len), dispatcher.dispatch(batch, rows)
    if dispatcher.sizes:
        says = CaptureLadder(dispatcher.sizes).explain(rows)
        whole = decode.mode is CUDAGraphMode.FULL or rows > dispatcher.sizes[-1]
        if dispatcher.mode.decode_mode() is CUDAGraphMode.FULL and not whole:
            says += f" No full graph holds {batch} requests within max_num_seqs {most}: "
            says += f"capture {rows} itself to have one."
    if query_len > 1:
        says = f"{batch} requests of {query_len} tokens are a batch of {rows} rows. {says}"
    told = [f"{way.mode}, {way.num_tokens} rows" for way in (decode, mixed)]
    return {"explanation": says, "decode": told[0], "mixed": told[1]}


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


def in_runs(sizes: Sequence[int]) -> str:
    """1, 2, 4, 8 … 256 (every 8). Fewer than four in a row are told one by one."""
    words = list[str]()
    while sizes:
        first, step = sizes[0], sizes[min(1, len(sizes) - 1)] - sizes[0]
        ends = (at for at, size in enumerate(sizes) if size != first + at * step)
        run = next(ends, len(sizes))
        every = f" (every {step})" if step > 1 else ""
        words.append(f"{first} … {sizes[run - 1]}{every}" if run > 3 else str(first))
        sizes = sizes[run if run > 3 else 1 :]
    return ", ".join(words)
