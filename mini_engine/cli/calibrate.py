"""Measure what this machine's GPU and CPU charge, and write a spec file for the simulator.

  python -m mini_engine calibrate --quick -o out/spec.json

Measured: a launch with and without a framework, a graph launch against its number of nodes, the gap
between kernels in a stream and in a graph, what programmatic dependent launch (PDL) takes off it,
bandwidth of a copy and of reading, the rate of a matrix product, recording and instantiating a
graph, the small copies around a step. Two files are written: the measurements (under
course/measurements/ on a GPU), and the spec made from them, in which every figure names that file
and its interval, or keeps the base's source where it was not measured. Then

  python -m mini_engine crossover --spec out/spec.json

predicts for this very machine. Without a GPU the same runs on the CPU emulator: that shows that
everything works, and both files say that they are no evidence.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mini_engine.cli import measuring
from mini_engine.predict.hardware import load_spec, spec_names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="fewer repeats and smaller buffers")
    measuring.add_device(parser)
    parser.add_argument(
        "--base",
        metavar="SPEC",
        help=f"where to take what is not measured: {', '.join(spec_names())}, or a JSON file "
        "(default: the spec of this GPU, by its name)",
    )
    parser.add_argument(
        "-o", "--out", type=Path, default=Path("out/spec.json"), metavar="JSON", help="the spec"
    )
    parser.add_argument(
        "--evidence",
        type=Path,
        metavar="JSON",
        help="the measurements (default: by the GPU's name)",
    )


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    backend = measuring.backend_of(args.device, "calibrate", console)
    from mini_engine.cuda.measure import spec_fit
    from mini_engine.cuda.measure.calibrate import measure, sizes_for
    from mini_engine.cuda.measure.evidence import new_measurement, write_measurement
    from mini_engine.cuda.measure.pdl_gap import PDL, PLAIN, SAVED

    command = measuring.command_line(args.typed)
    measurement = new_measurement("calibration", backend.device.type, command, {})
    own = None if measurement.emulated else spec_fit.base_name(measurement.gpu)
    if not (measurement.emulated or args.base or own):
        raise ValueError(
            f"no spec of {measurement.gpu} ships: say with --base where to take what is not "
            f"measured: {', '.join(spec_names())}"
        )
    base = load_spec(args.base or own or "laptop-cpu")
    figures: dict[str, Any] = {}
    with console.status("measuring") as status:
        for name, figure in measure(backend, sizes_for(backend, args.quick)):
            figures[name] = figure
            status.update(f"measured {name}")
    device = "emulated" if measurement.emulated else own or base.name
    evidence = args.evidence or measuring.measurement_path("calibration", device, backend.emulated)
    write_measurement(evidence, replace(measurement, figures=figures))
    spec = spec_fit.spec_json(
        figures,
        base,
        f"{device}-calibrated",
        evidence.name,
        own_base=own is not None and args.base is None,
        emulated=backend.emulated,
    )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(spec, indent=2) + "\n", encoding="utf-8")
    load_spec(args.out)  # raises where the simulator could not read it
    return {
        "gpu": measurement.gpu,
        "emulated": measurement.emulated,
        "evidence": str(evidence),
        "spec": str(args.out),
        "base": base.name,
        "pdl": {name: figures[name] for name in (PLAIN, PDL, SAVED)},
        "largest_residual": spec_fit.residuals(figures),
        "worst_held_out": spec_fit.held_out(figures),
        "kept_from_base": spec_fit.kept_from_base(figures, base),
        "fitted": {name: spec[name]["value"] for name in spec if name != "name"},
    }


def show(result: dict[str, Any], console: Console) -> None:
    if result["emulated"]:
        console.print("[bold]Emulated on a CPU: no evidence about any GPU.[/bold]")
    console.print(f"[bold]{result['gpu']}[/bold], what was not measured from {result['base']}")
    table = Table()
    for column in ("figure", "value", "from"):
        table.add_column(column, justify="right" if column == "value" else "left")
    for name, value in result["fitted"].items():
        kept = name in result["kept_from_base"]
        table.add_row(name, f"{value:,.6g}", result["base"] if kept else "measured here")
    console.print(table)
    for name, share in result["largest_residual"].items():
        held = result["worst_held_out"].get(name)
        doubt = "" if held is None else f", a point that it has not seen is missed by {held:.0%}"
        console.print(f"{name}: largest residual of its straight line {share:.0%}{doubt}")
    console.print(_pdl_line(*result["pdl"].values()))
    console.print(f"measurements: {result['evidence']}")
    console.print(f"spec: {result['spec']} (use it: --spec {result['spec']})")


def _pdl_line(plain: dict[str, Any], early: dict[str, Any], saved: dict[str, Any]) -> str:
    """What PDL takes off a node, or why nobody knows."""
    if early["median"] is None:
        return f"PDL not measured: {early['reason']}"
    return (
        f"PDL: a node (an RMSNorm of one row) takes {plain['median']:.2f} µs without and "
        f"{early['median']:.2f} µs with it: {saved['median']:.2f} µs saved "
        f"({saved['low']:.2f} to {saved['high']:.2f})"
    )
