"""Measure what this machine's GPU and CPU charge, and write a card and a host for the simulator.

  python -m mini_engine calibrate --quick -o out/card.json
  python -m mini_engine calibrate --host -o out/my-host.json

Measured: a launch with and without a framework, a graph launch against its number of nodes, the gap
between kernels in a stream and in a graph, what programmatic dependent launch (PDL) takes off it,
bandwidth of a copy, of reading and of a product, the rate of a large product, recording and
instantiating a graph, the small copies around a step. Three files are written: the measurements
(under course/measurements/ on a GPU), and what the simulator reads of them, the card (-o) and the
host that feeds it (beside it, card-host.json). Every figure names the measurements and its
interval, or keeps the base's source where it was not measured. The floor of a kernel depends on
whose kernel it is, so it belongs to an engine's file: it stands in the measurements. Then

  python -m mini_engine crossover --spec out/card.json --host out/card-host.json

predicts for this very machine. Without a GPU the same runs on the CPU emulator: that shows that
everything works, and all files say that they are no evidence. They name the commit. Where the code
was copied without .git, the variable LAUNCH_BOUND_COMMIT names it; without that it is "unknown".

--host measures the host alone, in seconds, on any machine with PyTorch: what an op costs a Python
program there, on CPU tensors. A launch on a GPU is not in it, and the file says so. Then

  python -m mini_engine crossover --host out/my-host.json

predicts for an H200 that this machine would feed.
"""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mini_engine.cli import measuring, options
from mini_engine.files import write_whole
from mini_engine.step.figures import FIGURES, load_sheet
from mini_engine.step.hardware import load_spec, spec_names

BASE_HOST = "server"  # where the figures of a host come from that are not measured
HOST_STEPS = 300  # of --host: a second or less


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="fewer repeats and smaller buffers")
    parser.add_argument(
        "--host", action="store_true", help="measure only what an op costs the host; needs no GPU"
    )
    measuring.add_device(parser)
    parser.add_argument(
        "--base",
        metavar="CARD",
        help=f"where to take what is not measured: {', '.join(spec_names())}, or a JSON file "
        "(default: the card of this GPU, by its name)",
    )
    parser.add_argument(
        "-o", "--out", type=options.json_out, metavar="JSON",
        help="the card, with the host in NAME-host.json beside it (default: out/card.json), or "
        "with --host the host (default: out/my-host.json)",
    )  # fmt: skip
    parser.add_argument(
        "--evidence",
        type=options.json_out,
        metavar="JSON",
        help="the measurements (default: by the GPU's name)",
    )


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    return _host_alone(args, console) if args.host else _card_and_host(args, console)


def _host_alone(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Ops on CPU tensors, whatever GPU there is."""
    if args.base or args.evidence or args.device == "cuda":
        raise ValueError(
            "--host measures no GPU and keeps no other file: leave out --base, --evidence and "
            "--device cuda"
        )
    measuring.backend_of("cpu", "calibrate --host")
    import torch

    from mini_engine.bench import spec_fit
    from mini_engine.bench.calibrate import op_on_cpu_us

    out: Path = args.out or Path("out/my-host.json")
    with console.status("measuring"):
        op_us = op_on_cpu_us(HOST_STEPS)
    on = (
        f"{_processor()}, Python {platform.python_version()}, PyTorch {torch.__version__}, "
        f"{datetime.now(UTC):%Y-%m-%d}"
    )
    base = load_sheet("host", BASE_HOST)
    _write(out, spec_fit.host_on_cpu_json(op_us, base, out.stem, on))
    return {
        "emulated": False,
        "machine": on,
        "host": str(out),
        "op_us": op_us,
        "base_host": base.name,
        "usual_op_us": base["op_us"],
        "fitted": _figures_of({"host": out}),
        "kept_from_base": {"host": [name for name in FIGURES["host"] if name != "op_us"]},
    }


def _card_and_host(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    card: Path = args.out or Path("out/card.json")
    if args.evidence in (card, _host_beside(card)):
        raise ValueError(
            f"--evidence {args.evidence}: the {'card' if args.evidence == card else 'host'} goes "
            "there: give another file"
        )
    backend = measuring.backend_of(args.device, "calibrate", console)
    from mini_engine.bench import spec_fit
    from mini_engine.bench.calibrate import measure, sizes_for
    from mini_engine.bench.evidence import CALIBRATED, new_measurement, write_measurement
    from mini_engine.bench.pdl_gap import PDL, PLAIN, SAVED

    command = measuring.command_line(args.typed)
    measurement = new_measurement("calibration", backend.device.type, command, {})
    own = None if measurement.emulated else spec_fit.base_name(measurement.gpu)
    if not (measurement.emulated or args.base or own):
        raise ValueError(
            f"no card of {measurement.gpu} ships: say with --base where to take what is not "
            f"measured: {', '.join(spec_names())}"
        )
    base = load_sheet("card", args.base or own or "laptop-cpu")
    base_host = load_sheet("host", "laptop" if measurement.emulated else BASE_HOST)
    figures: dict[str, Any] = {}
    with console.status("measuring") as status:
        for name, figure in measure(backend, sizes_for(backend, args.quick)):
            figures[name] = figure
            status.update(f"measured {name}")
    device = "emulated" if measurement.emulated else own or base.name
    evidence = args.evidence or measuring.measurement_path("calibration", device, backend.emulated)
    write_measurement(evidence, replace(measurement, figures=figures))
    files = {"card": card, "host": _host_beside(card)}
    sheet = spec_fit.card_json(
        figures,
        base,
        f"{device}{CALIBRATED}",
        evidence.name,
        own_base=own is not None and args.base is None,
        emulated=backend.emulated,
    )
    _write(files["card"], sheet)
    host = spec_fit.host_json(
        figures, base_host, f"{device}-host{CALIBRATED}", evidence.name, emulated=backend.emulated
    )
    _write(files["host"], host)
    load_spec(files["card"], files["host"])  # raises where the simulator could not read them
    return {
        "gpu": measurement.gpu,
        "emulated": measurement.emulated,
        "evidence": str(evidence),
        "card": str(files["card"]),
        "host": str(files["host"]),
        "base": base.name,
        "base_host": base_host.name,
        "engines_figure": {spec_fit.ENGINES_FIGURE: figures[spec_fit.ENGINES_FIGURE]},
        "pdl": {name: figures[name] for name in (PLAIN, PDL, SAVED)},
        "largest_residual": spec_fit.residuals(figures),
        "worst_held_out": spec_fit.held_out(figures),
        "fitted": _figures_of(files),
        "kept_from_base": {
            "card": spec_fit.kept(spec_fit.card_fits(figures, base), "card"),
            "host": spec_fit.kept(spec_fit.host_fits(figures), "host"),
        },
    }


def show(result: dict[str, Any], console: Console) -> None:
    if "card" in result:
        _show_card(result, console)
    else:
        op_us, path = result["op_us"], result["host"]
        console.print(_table("host", result, result["base_host"]))
        console.print(f"Measured on {result['machine']}.", soft_wrap=True)
        console.print(
            f"An op costs a PyTorch program here {op_us['median']:.1f} µs ({op_us['low']:.1f} to "
            f"{op_us['high']:.1f}), on CPU tensors; a launch on a GPU comes on top. The usual "
            f"server: {result['usual_op_us']:g} µs, launch included.",
            soft_wrap=True,
        )
        console.print(f"host: {path} (use it: crossover --host {path})", soft_wrap=True)


def _show_card(result: dict[str, Any], console: Console) -> None:
    if result["emulated"]:
        console.print("[bold]Emulated on a CPU: no evidence about any GPU.[/bold]")
    console.print(
        f"[bold]{result['gpu']}[/bold], what was not measured from the card {result['base']} and "
        f"the host {result['base_host']}"
    )
    for kind, base in (("card", result["base"]), ("host", result["base_host"])):
        console.print(_table(kind, result, base))
    for name, share in result["largest_residual"].items():
        held = result["worst_held_out"].get(name)
        doubt = "" if held is None else f", a point that it has not seen is missed by {held:.0%}"
        console.print(f"{name}: largest residual of its straight line {share:.0%}{doubt}")
    console.print(_pdl_line(*result["pdl"].values()))
    for name, figure in result["engines_figure"].items():
        console.print(
            f"{name} of PyTorch's own kernels: {figure['median']:.2f} µs ({figure['low']:.2f} to "
            f"{figure['high']:.2f}). It belongs to an engine's file: mini_engine/step/engines/",
            soft_wrap=True,
        )
    console.print(f"measurements: {result['evidence']}")
    console.print(
        f"use it: --spec {result['card']} --host {result['host']}", soft_wrap=True, markup=False
    )


# ---------------------------------------------------------------- parts


def _host_beside(card: Path) -> Path:
    return card.with_name(f"{card.stem}-host.json")


def _write(path: Path, sheet: dict[str, Any]) -> None:
    write_whole(path, json.dumps(sheet, indent=2, ensure_ascii=False) + "\n")


def _figures_of(files: dict[str, Path]) -> dict[str, dict[str, float]]:
    """What the files say, as the simulator reads them."""
    sheets = {kind: load_sheet(kind, path) for kind, path in files.items()}
    return {kind: {name: sheets[kind][name] for name in FIGURES[kind]} for kind in files}


def _table(kind: str, result: dict[str, Any], base: str) -> Table:
    table = Table(title=kind, title_justify="left")
    for column in ("figure", "value", "from"):
        table.add_column(column, justify="right" if column == "value" else "left")
    for name, value in result["fitted"][kind].items():
        kept = name in result["kept_from_base"][kind]
        table.add_row(name, f"{value:,.6g}", base if kept else "measured here")
    return table


def _processor() -> str:
    """What the CPU calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return (models[0] if models else "") or platform.processor() or platform.machine() or "a CPU"


def _pdl_line(plain: dict[str, Any], early: dict[str, Any], saved: dict[str, Any]) -> str:
    """What PDL takes off a node, or why nobody knows."""
    if early["median"] is None:
        return f"PDL not measured: {early['reason']}"
    return (
        f"PDL: a node (an RMSNorm of one row) takes {plain['median']:.2f} µs without and "
        f"{early['median']:.2f} µs with it: {saved['median']:.2f} µs saved "
        f"({saved['low']:.2f} to {saved['high']:.2f})"
    )
