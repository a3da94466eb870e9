"""Measure everything that matters on this machine's GPU, most valuable first, in nine minutes.

  python -m mini_engine gpu                            # all stages, into out/gpu; again: it goes on
  python -m mini_engine gpu --device cpu               # a rehearsal on the emulator: no evidence

Each stage has a deadline, its result is in a file, and what it printed in NAME.txt, before the next
one begins: a run may be cut at any moment, and the same line goes on with what is missing. What has
to be on the machine stands in course/measurements/README.md. The card's settings are not touched.
"""

from functools import partial
from pathlib import Path

from mini_engine.bench import stages
from mini_engine.bench.evidence import read_measurement
from mini_engine.bench.spec_fit import begun
from mini_engine.bench.stages import BENCH, DONE, SECONDS, read_outcomes, stages_for
from mini_engine.cli import CheckFailed, bench, options
from mini_engine.cli.terminal import Args, Found, Screen

NAMES = [stage.name for stage in stages_for("cuda")]
SHARED = "device"
OPTIONS: options.Rows = {
    "--stages NAME,...": (partial(options.words, known=NAMES), NAMES, "only these (default: all)"),
    "-o --out DIR": (options.out_folder, None, "(default: in out, by device)")}  # fmt: skip


def run(args: Args, console: Screen) -> Found:
    from mini_engine.cuda.graphs.backend import graphs_for

    device = "cpu" if args.device == "cpu" else "cuda"
    folder: Path = args.out or Path("out/gpu-emulated" if device == "cpu" else "out/gpu")
    chosen = [stage for stage in stages_for(device) if stage.name in args.stages]
    here, *_ = begun("run", graphs_for(device).device.type, args.typed)
    machine = {name: getattr(here, name) for name in ("gpu", "torch", "triton", "commit")}
    console.print(f"{len(chosen)} stages, {SECONDS / 60:g} minutes at most, results in {folder}")

    for one in stages.run(folder, chosen, machine, SECONDS, console.print):
        console.print(f"  {one.status} after {one.took_s:.0f} s {one.note}".rstrip())
    outcomes = list(read_outcomes(folder).values())
    if not any(one.status == DONE for one in outcomes):
        raise CheckFailed(f"no stage was done: see {folder}")
    file = folder / BENCH
    timed = bench.result_of(file, read_measurement(file)) if file.exists() else None
    return {"folder": folder, "ran": outcomes, "bench": timed}


def show(r: Args, console: Screen) -> None:
    for one in r.ran:
        told = f"{one.stage:12} {one.status} after {one.took_s:.0f} s {one.note}"
        console.print(told.rstrip())
    if r.bench:
        bench.show(Args(**r.bench), console)
