"""Measure everything that matters on this machine's GPU, most valuable first, in nine minutes.

  python -m mini_engine gpu                    # all stages, into out/gpu; again: it goes on
  python -m mini_engine gpu --stages arms,chain --minutes 4
  python -m mini_engine gpu report             # the summary again, nothing is measured
  python -m mini_engine gpu publish            # evidence into course/measurements, tables filled in
  python -m mini_engine gpu chain --shape qwen3-1.7b
  python -m mini_engine gpu environment

A run has stages: which machine this is (environment), what it charges (calibrate), the kernels that
follow, compiled on all CPUs (warm), how long a step takes in each of the ways that matter (arms),
each kernel alone at its place and the step without it (chain), prompts in our FlashAttention and in
PyTorch's (prefill), single kernels beside PyTorch's (kernels), the GPU's tests (pytest),
torch.compile (compile), and with the time that is left a profiler's trace, larger batches and the
slow tests (rest). Each has a deadline, and its result is in a file before the next one begins. So a
run may be cut at any moment, by Ctrl-C or because the machine is taken away. The same line goes on,
also on another machine of the same kind, if the folder comes along. At the end stand forty lines at
most: times, kernels, tests, and which of the project's bars are reached. What a stage printed is in
NAME.txt beside the results.

What has to be on the machine stands in course/measurements/README.md. No network is needed, and
nothing here touches the card's settings. Every file names the commit. Where the code was copied
without .git, the variable LAUNCH_BOUND_COMMIT names it; without that it is "unknown". `report` and
`publish` work without a GPU, so the folder can be carried home first. A run without a GPU puts a
tiny model through the same stages on the CPU emulator, in two to three minutes: a rehearsal, marked
as such, and no evidence.

`chain`, `prefill` and `environment` are stages by themselves. `chain` takes the decode step apart:
a kernel alone tells its bytes a second and its latency, the step without it what it really costs.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from mini_engine.bench.evidence import (
    continued,
    load_evidence,
    new_measurement,
    read_measurement,
    write_measurement,
)
from mini_engine.bench.first_run import CONTEXT, MODELS, SECONDS, first_run
from mini_engine.bench.stages import DONE, WAITING, Outcome, Stage, read_state
from mini_engine.bench.stages import run as run_stages
from mini_engine.bench.summary import prompt_told, summary
from mini_engine.cli import CheckFailed, measuring, options
from mini_engine.step.hardware import load_spec

if TYPE_CHECKING:
    from mini_engine.cuda.graphs.backend import GraphBackend

MOST_MINUTES = 10_080
PARTS = ("run", "report", "publish", "environment", "warm", "chain", "prefill")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "part", nargs="?", default="run", choices=PARTS, help="what to do (default: run)"
    )
    measuring.add_device(parser)
    parser.add_argument(
        "-o", "--out", type=Path, metavar="PATH",
        help="the folder of a run (default: out/gpu, emulated out/gpu-emulated), or the file of "
        "chain, prefill or environment",
    )  # fmt: skip
    parser.add_argument(
        "--stages", type=_words, metavar="NAME,...", help="only these (default: all)"
    )
    parser.add_argument(
        "--minutes", type=float, default=SECONDS / 60, help="for this call (default: %(default)g)"
    )
    parser.add_argument("--arms", type=_words, metavar="NAME,...", help="warm: variants of bench")
    parser.add_argument(
        "--shape", type=_words, metavar="NAME,...",
        help="chain, prefill: models (default: those of the stage arms)",
    )  # fmt: skip
    parser.add_argument(
        "--context", type=options.positive,
        help="chain: tokens of context (default: 512, emulated 40)",
    )  # fmt: skip
    parser.add_argument(
        "--rounds", type=options.positive, default=6, help="chain, prefill: laps, an even number"
    )
    parser.add_argument(
        "--steps", type=options.positive, default=32, help="chain: decode steps a lap"
    )


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    if args.part == "report":
        folder: Path = args.out or Path("out/gpu")
        state = read_state(folder)
        if state is None:
            raise ValueError(f"{folder}: no run here: `python -m mini_engine gpu` makes one")
        return _result(folder, list(state.outcomes.values()))
    if args.part == "publish":
        return _publish(args.out or Path("out/gpu"))
    if args.part != "run":
        return _part(args, measuring.backend_of(args.device, "gpu"), console)
    if args.device == "cpu":  # a rehearsal needs no torch to begin
        return _run(args, "cpu", console)
    return _run(args, measuring.backend_of(args.device, "gpu", console).device.type, console)


def show(result: dict[str, Any], console: Console) -> None:
    for line in result.get("summary", []):
        console.print(line, markup=False, soft_wrap=True)
    for path in result.get("written", []):
        console.print(f"written: {path}", markup=False, soft_wrap=True)


# ---------------------------------------------------------------- the run


def _run(args: argparse.Namespace, device: str, console: Console) -> dict[str, Any]:
    if not 0 < args.minutes < MOST_MINUTES:
        raise ValueError(f"--minutes {args.minutes:g}: expected more than 0, and less than a week")
    folder: Path = args.out or Path("out/gpu-emulated" if device == "cpu" else "out/gpu")
    stages = _chosen(first_run(device), args.stages)
    here = new_measurement("run", device, measuring.command_line(args.typed), {})
    identity = {name: getattr(here, name) for name in ("emulated", "gpu", "torch", "triton")}
    before = read_state(folder)
    known = dict(before.outcomes) if before else {}
    for stage in stages:
        if stage.name in known and known[stage.name].status == DONE:
            console.print(f"{stage.name}: done before")
    console.print(f"{len(stages)} stages, {args.minutes:g} minutes at most, results in {folder}")
    for outcome in run_stages(folder, stages, identity, args.minutes * 60, _announce(console)):
        known[outcome.stage] = outcome
        told = f"  {outcome.status} after {outcome.seconds:.0f} s {outcome.note}".rstrip()
        console.print(told, markup=False, soft_wrap=True)
    order = [known.get(stage.name, Outcome(stage.name, WAITING)) for stage in stages]
    return _result(folder, order)


def _announce(console: Console) -> Any:
    """What to print as a stage begins."""

    def say(stage: Stage, seconds: float) -> None:
        console.print(f"{stage.name}: {stage.teaches} (at most {seconds:.0f} s)", soft_wrap=True)

    return say


def _chosen(stages: list[Stage], names: list[str] | None) -> list[Stage]:
    for name in names or []:
        if name not in {stage.name for stage in stages}:
            known = ", ".join(stage.name for stage in stages)
            raise ValueError(f"--stages {name}: expected some of {known}")
    return [stage for stage in stages if not names or stage.name in names]


def _result(folder: Path, outcomes: list[Outcome]) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "stages": [one.told() for one in outcomes],
        "summary": summary(folder, outcomes),
    }


def _publish(folder: Path) -> dict[str, Any]:
    """Into the tree that this command was started in."""
    from mini_engine.bench.publish import publish
    from mini_engine.bench.spec_fit import base_name

    environment = folder / "environment.json"
    if not environment.exists():
        raise ValueError(f"{folder}: no run here: `python -m mini_engine gpu` makes one")
    gpu = load_evidence(environment).gpu
    card = base_name(gpu) or "-".join(gpu.lower().split())
    return {"written": [str(path) for path in publish(folder, Path(), card)]}


# ---------------------------------------------------------------- stages by themselves


def _part(args: argparse.Namespace, backend: GraphBackend, console: Console) -> dict[str, Any]:
    """One measurement into one file."""
    out: Path = args.out or Path("out") / f"{args.part}.json"
    line = measuring.command_line(args.typed)
    measurement = new_measurement(args.part, backend.device.type, line, {})
    if args.part == "environment":
        from mini_engine.bench.environment import environment

        figures = environment(backend)
        write_measurement(out, replace(measurement, figures=figures))
    elif args.part == "warm":
        return _warm(args, backend, console)
    elif args.part == "prefill":
        figures = _prefill(args, backend, console, measurement.gpu)
        write_measurement(out, replace(measurement, figures=figures))
    else:
        figures = _chain(args, backend, console, out)
    return {"written": [str(out)], "emulated": backend.emulated, "figures": figures}


def _warm(args: argparse.Namespace, backend: GraphBackend, console: Console) -> dict[str, Any]:
    """One shape and one variant here, more of them in processes of their own."""
    from mini_engine.bench.warm import pairs_of, warm, warm_all

    shapes = args.shape or (["tiny"] if backend.emulated else list(MODELS))
    pairs = pairs_of(shapes, args.arms or ["graph-5"])
    context = args.context or (40 if backend.emulated else CONTEXT)
    if len(pairs) == 1:
        config = replace(measuring.shape_of(shapes[0]), dtype="bfloat16")
        console.print(warm(backend, config, pairs[0][1], context, args.steps))
        return {"written": []}
    line = ["-m", "mini_engine", "gpu", "warm", "--device", backend.device.type]
    line += ["--context", str(context), "--steps", str(args.steps)]
    failed = warm_all(
        pairs, lambda pair: [*line, "--shape", pair[0], "--arms", pair[1]],
        lambda told: console.print(told, markup=False, soft_wrap=True),
    )  # fmt: skip
    if failed:
        raise CheckFailed(f"{failed} of {len(pairs)} were not compiled")
    return {"written": []}


def _chain(
    args: argparse.Namespace, backend: GraphBackend, console: Console, out: Path
) -> dict[str, Any]:
    """Every link as soon as it is known; those that the file has are kept."""
    import torch

    from mini_engine.bench.calibrate import copy_bandwidth, sizes_for
    from mini_engine.bench.chain import KERNELS, chain
    from mini_engine.bench.decode_setup import BLOCK_SIZE, build_setup

    shapes = args.shape or (["tiny"] if backend.emulated else list(MODELS))
    context = args.context or (40 if backend.emulated else CONTEXT)
    line = measuring.command_line(args.typed)
    measurement = new_measurement("chain", backend.device.type, line, {})
    copy = copy_bandwidth(backend, sizes_for(backend, quick=True))
    figures: dict[str, Any] = {"copy_bandwidth_gb_s": copy, "links": []}
    if out.exists():
        measurement = continued(out, read_measurement(out), measurement)
        figures = dict(measurement.figures)
    places = ("shape", "context", "kernel")
    known = {tuple(one[name] for name in places) for one in figures["links"]}
    for shape in shapes:
        config = replace(measuring.shape_of(shape), dtype="bfloat16")
        weights = measuring.weights_of(shape, config, backend, torch.bfloat16)
        room = context + args.steps + BLOCK_SIZE
        setup = build_setup(backend, weights, 1, context, room)
        todo = [k for k in KERNELS if (config.name, context, k) not in known]
        for link in chain(
            backend, setup, copy["median"], todo, steps=args.steps, rounds=args.rounds
        ):
            one = {"shape": config.name, "context": context, **link.as_json()}
            figures["links"] = [*figures["links"], one]
            write_measurement(out, replace(measurement, figures=figures))
            console.print(
                f"{config.name} {link.kernel}: alone {link.alone.median:.2f} µs, "
                f"{link.gb_s:,.0f} GB/s; left out {link.left_out.median:.2f} µs"
            )
        del setup, weights
    return figures


def _prefill(
    args: argparse.Namespace, backend: GraphBackend, console: Console, gpu: str
) -> dict[str, Any]:
    import torch

    from mini_engine.bench.calibrate import copy_bandwidth, sizes_for
    from mini_engine.bench.prompts import ON_A_GPU, REHEARSAL, prompt_rows
    from mini_engine.bench.spec_fit import base_name

    copy, rows = copy_bandwidth(backend, sizes_for(backend, quick=True)), []
    card = load_spec("laptop-cpu" if backend.emulated else base_name(gpu) or "h200")
    for shape in args.shape or (["tiny"] if backend.emulated else list(MODELS)):
        config = replace(measuring.shape_of(shape), dtype="bfloat16")
        weights = measuring.weights_of(shape, config, backend, torch.bfloat16)
        for case in REHEARSAL if backend.emulated else ON_A_GPU:
            for row in prompt_rows(
                backend, weights, case, copy["median"], card.peak_tflops, rounds=args.rounds
            ):
                rows.append({"shape": config.name, **row})
                console.print(f"{config.name}, {case.name}: {row['what']} {prompt_told(row)}")
    return {"copy_bandwidth_gb_s": copy, "spec": card.name, "rows": rows}


def _words(word: str) -> list[str]:
    """`a,b` as a list, for `type=`."""
    return [part.strip() for part in word.split(",") if part.strip()]
