"""Time real decode steps on this machine's GPU, variant by variant, and test the simulator on them.

  python -m mini_engine bench --quick               # minutes: batch 1 and 8 of one shape
  python -m mini_engine bench --resume              # what an interrupted run has not measured
  python -m mini_engine bench --plot FILE.json      # table and picture again, nothing measured

The variants (--arms) are of transformers, of our plain model, and of our Triton kernels, eager and
in graphs: k8 has eight steps in one graph, pdl programmatic dependent launch. Ours pass a gate
before they are timed: the error of their logits may be a quarter above plain bf16's at most. Others
are timed, and marked where they fail. Each takes turns with the anchor, always the same variant.
The null variant is the anchor against itself, and shows the noise. "(no graph)": torch.compile left
a graph out.

Weights are random in the true shape unless --shape is a checkpoint folder. Predictions are best
with --spec and --host that `calibrate` wrote. Without a GPU, a tiny model runs on the CPU emulator,
which is no evidence. Without .git, LAUNCH_BOUND_COMMIT names the commit.
"""

import sys
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path

from mini_engine.bench import evidence
from mini_engine.bench.bars import judged
from mini_engine.bench.evidence import read_measurement
from mini_engine.bench.others import NAMES, compare, job_for
from mini_engine.bench.rows import MEASURED, NOT_RUN, Point, Row, by_point, measured_steps
from mini_engine.bench.spec_fit import begun
from mini_engine.cli import CheckFailed, options
from mini_engine.cli.terminal import Args, Columns, Found, Screen, table
from mini_engine.model.config import tiny_shape
from mini_engine.model.hub import shape_of
from mini_engine.step.cards import load_sheet, load_spec

HEADS = ("<variant", "<ITL µs (95%)", "<× anchor", "<GB/s", "<of a copy", "<predicted µs")
ENGINES: Columns = {
    "<engine": "{0[engine]}",
    "<version": lambda one: one["version"] or f"{one['status']}: {one['reason'][:60]}",
    "ITL µs at the caller": "{0[itl][median]:,.1f}", "p99 µs": "{0[p99_us]:,.1f}",
    "× launch-bound": "{0[times_ours]:.2f}", "tokens a piece": "{0[tokens_a_piece]:.2f}",
    "same tokens": "{0[same_tokens]:.0%}", "start s": "{0[start_s]:.1f}"}  # fmt: skip
MODELS = ["qwen3-0.6b", "qwen3-1.7b", "llama-3.2-1b"]
USUAL: tuple[Found, ...] = (  # where nothing else is given: emulated, with --quick, and without
    {"shape": ["tiny"], "batch": [1, 2], "context": [40], "rounds": 2, "steps": 4},
    {"shape": MODELS[:1], "batch": [1, 8], "context": [512], "rounds": 8, "steps": 32},
    {"shape": MODELS, "batch": [1, 8, 64, 256], "context": [512], "rounds": 20, "steps": 32},
)
SHARED = "device"
AGAINST = f"other engines on a checkpoint folder; without --arms, only they: {', '.join(NAMES[2:])}"
OPTIONS: options.Rows = {
    "--quick": (bool, None, "one shape, batch 1 and 8, 8 laps"),
    "--shape NAME,...": (options.words, None, "shapes or folders (default: three; emulated: tiny)"),
    "--batch 1,8": (options.whole_numbers, None, "batches (default: 1,8,64,256)"),
    "--context 512": (options.whole_numbers, None, "contexts (default: 512)"),
    "--arms NAME,...": (options.words, None, "variants (default: all; an unknown name lists them)"),
    "--against NAME,...": (partial(options.words, known=NAMES), [], AGAINST + " (default: none)"),
    "--python PYTHON": (str, sys.executable, "which has the engines of --against"),
    "--rounds N": (options.positive, None, "laps, an even number (default: 8, or 20)"),
    "--steps N": (options.positive, None, "decode steps a lap (default: 32)"),
    "--gate-steps N": (options.positive, 128, "steps that the gate compares"),
    "--spec CARD": (str, None, "predict with this card (default: by the GPU's name)"),
    "--host HOST": (str, None, "and this host (default: the usual server)"),
    "--resume": (bool, None, "keep what the file has measured"),
    "--plot JSON": (Path, None, "measure nothing: show the table of this file, draw it again"),
    "-o --out JSON": (options.json_out, None, "measurements (default: by the GPU)")}  # fmt: skip


def run(args: Args, console: Screen) -> Found:
    if args.plot:
        return result_of(args.plot, read_measurement(args.plot))
    from mini_engine.bench.bench import Bench
    from mini_engine.bench.calibrate import copy_bandwidth, sizes_for
    from mini_engine.bench.variants import ANCHOR, VARIANTS
    from mini_engine.cuda.generate import nearest_backend
    from mini_engine.cuda.graphs.backend import measured_dtype

    backend = nearest_backend(console.print, args.device)
    usual = USUAL[0 if backend.emulated else 1 if args.quick else 2]
    vars(args).update({name: getattr(args, name) or value for name, value in usual.items()})
    args.arms = args.arms or ([] if args.against else list(VARIANTS))
    if args.rounds % 2:
        raise ValueError(f"--rounds {args.rounds}: expected an even number, to balance the order")
    if strange := [arm for arm in args.arms if arm not in VARIANTS]:
        raise ValueError(f"no variant {strange[0]!r}: use some of {', '.join(VARIANTS)}")
    if args.against and (names := [word for word in args.shape if not Path(word).is_dir()]):
        raise ValueError(f"--against loads a checkpoint: give --shape FOLDER, not {names[0]!r}")
    dtype, configs = str(measured_dtype(backend)).removeprefix("torch."), {}
    for word in args.shape:
        shape = tiny_shape() if word == "tiny" else shape_of(word)
        configs[word] = replace(shape, dtype=dtype)
    measurement, known, path = begun("bench", backend.device.type, args.typed)
    out, card = args.out or path, args.spec or known or options.CARD
    own = load_sheet("card", card).words["engine"]  # a card may name the engine of all that runs
    copy = copy_bandwidth(backend, sizes_for(backend))
    bench = Bench(
        backend, lambda engine: load_spec(card, args.host, own or engine), copy["median"],
        args.rounds, args.steps, args.gate_steps)  # fmt: skip
    spec = bench.spec_for(VARIANTS[ANCHOR].engine)
    rows, others = dict[tuple[Point, str], Row](), list[Found]()
    if args.resume and out.exists():
        old = read_measurement(out)
        evidence.check_same_machine(out, old, measurement)
        rows = {(row.point, row.variant): row for row in measured_steps(old.figures["rows"])}

    def written(told: str) -> None:
        figures = {
            "copy_bandwidth_gb_s": copy, "spec": spec.name, "host": spec.host, "anchor": ANCHOR,
            "rounds": args.rounds, "steps": args.steps,
            "rows": [row.as_json() for row in rows.values()], "others": others}  # fmt: skip
        evidence.write_measurement(out, replace(measurement, figures=figures))
        console.print(told)

    for row in bench.missing(configs, [*product(args.batch, args.context)], args.arms, rows):
        rows[row.point, row.variant] = row
        written(f"{row.point}: {row.variant} {', '.join(_cells(row)[:2])}")
    for (word, config), batch, context in product(configs.items(), args.batch, args.context):
        folder = str(Path(word).absolute())
        job = job_for(folder, batch, context, args.steps, args.rounds, config.vocab_size)
        for one in compare(config.name, job, args.against, args.python) if args.against else ():
            others.append(asdict(one))
            us = f"{one.itl.median:,.1f} µs between tokens"
            written(f"{one.engine}: {us if one.status == MEASURED else one.reason}")
    found = read_measurement(out)
    every = [*found.figures["rows"], *found.figures["others"]]
    if all(one["status"] == NOT_RUN for one in every):
        raise CheckFailed(f"none of {len(every)} was timed: {every[-1]['reason']} (more in {out})")
    return result_of(out, found)


def result_of(out: Path, measurement: evidence.Measurement) -> Found:
    """What the file says, with its picture drawn beside it."""
    from mini_engine import plots

    if measurement.kind != "bench":
        raise ValueError(f"{out}: a {measurement.kind}, expected the file of a bench")
    figures, picture = measurement.figures, out.with_name(f"{out.stem}-itl.png")
    try:
        steps, bars = measured_steps(figures["rows"]), judged(measurement)
    except ValueError as error:
        raise ValueError(f"{out}: {error}: measure again") from None
    told = str(picture)
    try:
        plots.itl_against_batch(steps, picture, measurement)
    except ValueError as error:  # nothing in it passed the gate
        picture.unlink(missing_ok=True)
        told = f"not drawn: {error}"
    return {"out": out, "emulated": measurement.emulated, "rows": figures["rows"],
            "others": figures["others"], "bars": bars, "picture": told}  # fmt: skip


def show(r: Args, console: Screen) -> None:
    if r.emulated:
        console.print(options.EMULATED)
    columns = 3 if r.emulated else 6  # emulated rates and shares would be of nothing
    for point, rows in by_point(map(Row.from_json, r.rows)).items():
        cells = [(row.variant, *_cells(row))[:columns] for row in rows]
        console.print(table(HEADS[:columns], cells, title=str(point), box=None))
    if r.others:
        console.print(table(ENGINES, r.others))
    for bar in () if r.emulated else r.bars:
        console.print(str(bar))
    console.print(f"measurements: {r.out}\nITL against batch: {r.picture}")


def _cells(row: Row) -> list[str]:
    if row.status != MEASURED:
        return [f"{row.status}: {row.reason}"[:60]]
    remark = " (no graph)" if row.no_graph else " FAILED THE GATE" if row.failed_gate else ""
    itl = f"{row.itl_us:,.1f} ({row.itl.low:,.1f} to {row.itl.high:,.1f}){remark}"
    rates = f"{row.achieved_gb_s:,.0f}", f"{row.percent_of_copy:.1f}%", f"{row.predicted_us:,.1f}"
    return [itl, f"{row.times_the_anchor.median:.3f}", *rates]
