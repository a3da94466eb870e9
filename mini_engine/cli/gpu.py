"""Measure everything that matters on this machine's GPU, most valuable first, in nine minutes.

  python -m mini_engine gpu                            # all stages, into out/gpu; again: it goes on
  python -m mini_engine gpu --stages design,chain --minutes 4 --archive out/gpu.tar.gz
  python -m mini_engine gpu report                     # the summary again, nothing is measured
  python -m mini_engine gpu --device cpu               # a rehearsal, without a GPU

A run has stages: which machine this is (environment), a step of our one design (design), the step
without each of its kernels in turn (chain), graphs, eager and transformers (baselines), what each
idea buys (ideas), what the machine charges (calibrate), the GPU's tests (pytest), torch.compile
(compile), larger batches, few bits, prompts (batches). Each has a deadline, and its result is in a
file before the next one begins; with --archive everything is then packed into one file. A run may
be cut at any moment: the same line goes on with what is missing. At the end stand forty lines at
most: times, kernels, tests, and which of the project's bars are reached. What a stage printed is in
NAME.txt beside the results. `environment`, `chain` and `prefill` can be measured by themselves.

What has to be on the machine stands in course/measurements/README.md: no network is needed, and
nothing here touches the card's settings. A rehearsal puts a tiny model through the same stages on
the CPU emulator in a minute or two: it is marked as such, and no evidence.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from mini_engine.bench.evidence import new_measurement, write_measurement
from mini_engine.bench.report import report
from mini_engine.bench.stages import DONE, SECONDS, Outcome, Stage, read_outcomes, stages_for
from mini_engine.bench.stages import run as run_stages
from mini_engine.cli import CheckFailed, measuring, options

PARTS = ("run", "report", "environment", "chain", "prefill")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("part", nargs="?", default="run", choices=PARTS, help="what to do (default: run)")
    measuring.add_device(parser)
    out = "the folder of a run (default: out/gpu, emulated out/gpu-emulated), or the file of a part"
    add("-o", "--out", type=Path, metavar="PATH", help=out)
    add("--stages", type=measuring.words, metavar="NAME,...", help="only these (default: all)")
    add("--minutes", type=options.number, default=SECONDS / 60, help="(default: %(default)g)")
    archive = "everything in one file, stage by stage"
    add("--archive", type=Path, metavar="FILE.tar.gz", help=archive)
    shape = "chain, prefill: the model (default: qwen3-0.6b, emulated tiny)"
    add("--shape", metavar="NAME", help=shape)
    add("--context", type=options.positive, help="chain: tokens (default: 512, emulated 40)")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    device = "cpu" if args.device == "cpu" else "cuda"
    folder: Path = args.out or Path("out/gpu-emulated" if device == "cpu" else "out/gpu")
    if args.part == "report":
        if known := read_outcomes(folder):
            return _summary(folder, known.values())
        raise ValueError(f"{folder}: no run here: `python -m mini_engine gpu` makes one")
    try:
        backend = measuring.backend_of(device, "gpu", console)
    except ValueError as error:
        rehearse = "rehearse without a GPU: python -m mini_engine gpu --device cpu"
        raise ValueError(f"{error}; {rehearse}") from None
    return _run(args, folder, device, console) if args.part == "run" else _part(args, backend)


def show(result: dict[str, Any], console: Console) -> None:
    for line in result.get("summary", [f"written: {result.get('written')}"]):
        console.print(line, markup=False, soft_wrap=True)


def _summary(folder: Path, outcomes: Iterable[Outcome]) -> dict[str, Any]:
    stages = [asdict(one) for one in outcomes]
    return {"folder": str(folder), "stages": stages, "summary": report(folder, outcomes)}


def _run(args: argparse.Namespace, folder: Path, device: str, console: Console) -> dict[str, Any]:
    if args.minutes <= 0:
        raise ValueError(f"--minutes {args.minutes:g}: expected more than 0")
    stages = {stage.name: stage for stage in stages_for(device)}
    for name in args.stages or []:
        if name not in stages:
            raise ValueError(f"--stages {name}: expected some of {', '.join(stages)}")
    chosen = [stage for stage in stages.values() if stage.name in (args.stages or stages)]
    here = new_measurement("run", device, measuring.command_line(args.typed), {})
    machine = {name: getattr(here, name) for name in ("gpu", "torch", "triton", "commit")}
    console.print(f"{len(chosen)} stages, {args.minutes:g} minutes at most, results in {folder}")

    def begins(stage: Stage, seconds: float) -> None:
        console.print(f"{stage.name}: {stage.teaches} (at most {seconds:.0f} s)", soft_wrap=True)

    seconds = args.minutes * 60
    for outcome in run_stages(folder, chosen, machine, seconds, args.archive, begins):
        told = f"  {outcome.status} after {outcome.took_s:.0f} s {outcome.note}".rstrip()
        console.print(told, markup=False, soft_wrap=True)
    outcomes = read_outcomes(folder).values()
    if not any(one.status == DONE for one in outcomes):
        raise CheckFailed(f"no stage was done: see {folder}")
    return _summary(folder, outcomes)


def _part(args: argparse.Namespace, backend: Any) -> dict[str, Any]:
    """One measurement into one file."""
    from mini_engine.bench.calibrate import copy_bandwidth, environment, sizes_for
    from mini_engine.bench.chain import chain
    from mini_engine.bench.decode_setup import BLOCK_SIZE, build_setup
    from mini_engine.bench.prefill import prompts
    from mini_engine.bench.variants import no_kernels

    out: Path = args.out or Path("out") / f"{args.part}.json"
    line = measuring.command_line(args.typed)
    measurement = new_measurement(args.part, backend.device.type, line, {})

    def written(figures: dict[str, Any]) -> dict[str, Any]:
        write_measurement(out, replace(measurement, figures=figures))
        return {"written": str(out), "figures": figures}

    if args.part == "environment":
        return written(environment(backend))
    if reason := no_kernels(backend):
        raise ValueError(reason)
    small = backend.emulated
    word = args.shape or ("tiny" if small else "qwen3-0.6b")
    config = measuring.config_of(word, backend)
    if args.part == "prefill":
        return written({"prompts": list(prompts(backend, config, rounds=2 if small else 8))})
    context, steps = args.context or (40 if small else 512), 1 if small else 32
    weights = measuring.weights_of(word, config, backend, measuring.dtype_of(backend))
    setup = build_setup(backend, weights, 1, context, context + steps + BLOCK_SIZE)
    copy = copy_bandwidth(backend, sizes_for(backend, quick=True))
    figures: dict[str, Any] = {"copy_bandwidth_gb_s": copy, "links": []}
    for link in chain(setup, copy["median"], steps=steps, rounds=2 if small else 6):
        figures["links"].append({"shape": config.name, "context": context, **asdict(link)})
        written(figures)
    return written(figures)
