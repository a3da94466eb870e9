"""ITL against batch, eager and with graphs: where does the gain of a CUDA graph end?

  python -m mini_engine crossover --shape qwen3-0.6b --spec h200 --host server --engine vllm
  python -m mini_engine crossover --shape qwen3-8b --spec h100 --speculate 3 --accept 0.7

An eager step is a race: the CPU issues one kernel after another, the GPU runs them. While the batch
is small the GPU waits for every launch, and more requests cost little. At the crossover all kernels
take as long as all their launches. Below it a graph saves what the GPU would have waited; above it
only the wider gaps between launches, and what the engine does between two steps. How fast the host
is decides where it lies: try --host desktop-2025, --engine transformers, --spec l4 or --quant int4.

With --speculate K it asks instead where drafts stop paying: a step checks K drafts of each request,
of which the share --accept is right (`validate --speculation`).
"""

from dataclasses import replace

from mini_engine.cli import options
from mini_engine.cli.terminal import Args, Columns, Found, Screen, lanes, table, two_digits
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.ladder import CaptureLadder
from mini_engine.model.hub import shape_of
from mini_engine.step import curves, speculation
from mini_engine.step.capacity import check_batch
from mini_engine.step.explain import Way
from mini_engine.step.run import WAYS

COLUMNS: Columns = {
    "batch": "{0.batch:,}", "rung": lambda p: "eager" if p.rung is None else f"{p.rung:,}",
    "eager\nITL ms": "{0.eager.itl_us:ms}", "piecewise\nITL ms": "{0.piecewise.itl_us:ms}",
    "full\nITL ms": "{0.full.itl_us:ms}", "full\nfaster": "× {0.speedup:.2f}",
    "floor\nms": "{0.floor_us:ms}", "busy\neager": "{0.eager.utilisation:.0%}",
    "busy\nfull": "{0.full.utilisation:.0%}"}  # fmt: skip
SHARED = "shape spec stored context"
OUT = "picture (default: out/crossover.png; with --json none)"
OPTIONS: options.Rows = {
    "--max-batch N": (options.step_tokens, 256, "the table ends here, or with the last that fits"),
    "--speculate K": (options.drafted, None, "drafts of each request, checked in every step"),
    "--accept A": (options.share, None, "with --speculate: of the drafts (default: 0.7)"),
    "--draft NAME": (str, None, "a shape, or `head`: one layer, as EAGLE's (default: n-grams)"),
    "-o --out FILE": (options.picture, None, OUT)}  # fmt: skip


def run(args: Args, console: Screen) -> Found:
    if args.speculate:
        return _speculate(args)
    if args.draft or args.accept is not None:
        raise ValueError("--accept and --draft say what --speculate K is to predict: give K, too")
    from mini_engine import plots

    out = args.out or (None if args.json else options.picture("out/crossover.png"))
    server = options.server(args)
    shape, spec, stored, context = server.config, server.spec, server.stored, args.context
    seqs, tokens = spec.batch_defaults
    sizes = default_capture_sizes(max(seqs, args.max_batch), tokens)
    room = check_batch(server.costs, 1, context, [size for size in sizes if size <= seqs])
    curve = curves.itl_curve(shape, spec, CaptureLadder(sizes), context=context, stored=stored,
                             max_batch=min(args.max_batch, room))  # fmt: skip
    if out:
        plots.itl_curve(curve, out)
    first, last = curve.points[0], curve.points[-1].batch
    # the crossover, if issuing a kernel took as much less and more as eager steps were missed by
    hosts = [replace(spec, cpu_op_us=us) for us in spec.interval(spec.cpu_op_us, "NONE") or ()]
    return {
        **options.told(server), "style": spec.ops, "capture_sizes": sizes, "room": room,
        "crossover_batch": curve.crossover, "crossover_interval": [
            curves.crossover_batch(shape, on, context, stored) for on in hosts],
        "batch_1": {mode: Way.of(spec, getattr(first, way).itl_us, mode, 1, first.floor_us)
                    for mode, way in WAYS.items()},
        "finding": curve.finding(), "out": out,
        "points": [curve.point(n) for n in _doublings(last, min(curve.crossover, last))],
    }  # fmt: skip


def _speculate(args: Args) -> Found:
    if args.out:
        raise ValueError(f"-o {args.out}: --speculate draws no picture")
    server, accept = options.server(args), 0.7 if args.accept is None else args.accept
    shape, spec, draft = server.config, server.spec, None
    if args.draft:
        draft = speculation.head_of(shape) if args.draft == "head" else shape_of(args.draft)
    room = check_batch(server.costs, 1, args.context + args.speculate)
    points = [
        speculation.speculated(shape, spec, batch=batch, context=args.context, draft=draft,
                               drafts=args.speculate, stored=server.stored)
        for batch in _doublings(min(args.max_batch, room, spec.batch_defaults.max_num_seqs))
    ]  # fmt: skip
    return {
        **options.told(server), "room": room, "points": points, "draft": draft and draft.name,
        "accept": accept, "tokens_a_step": speculation.tokens_a_step(accept, args.speculate),
        "speedups": {one.batch: one.speedup(accept) for one in points},
        "tokens_s": {one.batch: one.tokens_s(accept) for one in points},
        "pays_from": {one.batch: one.pays_from for one in points}}  # fmt: skip


def _doublings(last: int, *more: int) -> list[int]:
    return sorted({1 << i for i in range(last.bit_length())} | {last, *more})


def _show_speculation(r: Args, console: Screen) -> None:
    say = console.print
    say(f"{r.shape} on {options.on(r)}, {r.context:,} tokens of context each: predicted. "
        f"{r.speculate} drafts by {r.draft or 'n-grams'}, {r.accept:.0%} of them right, make "
        f"{r.tokens_a_step:.2f} tokens a step.\n")  # fmt: skip
    columns: Columns = {
        "batch": COLUMNS["batch"], "rung": COLUMNS["rung"], "plain\nms": "{0.plain_us:ms}",
        "drafts\nms": "{0.drafts_us:ms}", "plain\ntokens/s": "{0.plain_tokens_s:two}",
        "drafts\ntokens/s": lambda s: two_digits(r.tokens_s[s.batch]),
        "faster": lambda s: f"× {r.speedups[s.batch]:.2f}",
        "pays\nfrom": lambda s: "never" if s.pays_from is None else f"{s.pays_from:.0%}",
    }  # fmt: skip
    say(table(columns, r.points))
    slower = [f"stop paying at batch {n:,}" for n, times in r.speedups.items() if times < 1]
    where = [*slower, "pay at every batch here"][0]
    say(f"They {where}. Pays from: the least share of drafts that must be right.")


def show(r: Args, console: Screen) -> None:
    if r.speculate:
        return _show_speculation(r, console)
    say = console.print
    say(f"{r.shape} on {options.on(r)}, op list {r.style}, weights {r.quant}, cache {r.kv_dtype}, "
        f"{r.context:,} tokens of context each: predicted\n")  # fmt: skip
    bold = [i for i, point in enumerate(r.points) if point.batch == r.crossover_batch]
    say(table(COLUMNS, r.points, bold=bold))
    say("busy: the share of the step in which the GPU runs a kernel\n")
    first = r.points[0]
    for name, step in (("eager", first.eager), ("one graph", first.full)):
        say(lanes(name, step.itl_us, step.cpu_us, step.utilisation, first.eager.itl_us))
    if r.max_batch > r.room:
        say(f"Batches above {r.room:,} are left out: they do not fit (see capacity).")
    low, high = r.crossover_interval
    beyond = ": so many requests do not fit" if r.crossover_batch > r.room else ""
    modes = ", ".join(f"{mode} {options.ms(itl)}" for mode, itl in r.batch_1.items())
    say(f"{r.finding}.\nThe crossover is at batch {r.crossover_batch:,} ({low:,} to {high:,})"
        f"{beyond}.\nBatch 1: {modes}.\n{options.WITHIN}\nPicture: {r.out}")  # fmt: skip
