"""Measure what this machine charges, and write it down as a card and a host to predict with.

  python -m mini_engine calibrate -o out/card.json          # and out/card-host.json beside it
  python -m mini_engine calibrate --host                    # the host alone, in seconds, anywhere
  python -m mini_engine crossover --spec out/card.json --host out/card-host.json

Measured are the CPU time of one PyTorch op, of a launch, of a graph's launch, capture and nodes;
the gaps between two kernels; the bandwidth of a copy and of a product of one row; a large product;
copies of inputs and reading a token back. The rest is taken from --base. Without a GPU all runs on
the CPU emulator, which is no evidence. --host measures on CPU tensors what an op costs here.
"""

import json
import platform
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mini_engine.cli import options
from mini_engine.cli.terminal import Args, Found, Screen, table
from mini_engine.files import write_whole
from mini_engine.step.cards import FIGURES, load_sheet, load_spec, names

BASE_HOST = "server"  # where the figures of a host come from that are not measured
HOST_STEPS = 300  # of --host: a second or less
SHARED = "device"
OUT = "the card, with the host in NAME-host.json beside it (default: out/card.json), or with --host"
OPTIONS: options.Rows = {
    "--host": (bool, None, "measure only what an op costs the host; needs no GPU"),
    "--base CARD": (str, None, "where to take the rest (default: the card of this GPU)"),
    "-o --out JSON": (options.json_out, None, f"{OUT} the host (default: out/my-host.json)"),
    "--evidence JSON": (options.json_out, None, "the measurements (default: by the GPU's name)"),
}


def run(args: Args, console: Screen) -> Found:
    if args.host and (args.base or args.evidence or args.device == "cuda"):
        raise ValueError("--host measures no GPU: leave out --base, --evidence and --device cuda")
    with console.status("measuring"):
        found = _host_alone(args) if args.host else _card_and_host(args, console)
    figures = {}
    for kind, path in found["files"].items():
        sheet = load_sheet(kind, path)
        figures[kind] = [(name, sheet[name], sheet.figures[name].kind) for name in FIGURES[kind]]
    return {"op_us": None, **found, "figures": figures}


def _host_alone(args: Args) -> Found:
    import torch

    from mini_engine.bench import spec_fit
    from mini_engine.bench.calibrate import op_on_cpu_us

    out, op_us = args.out or Path("out/my-host.json"), op_on_cpu_us(HOST_STEPS)
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    named = re.search(r"^model name\s*: (.+)", text, re.MULTILINE)
    processor = named[1] if named else platform.processor() or platform.machine() or "a CPU"
    versions = f"Python {platform.python_version()}, PyTorch {torch.__version__}"
    on = f"{processor}, {versions}, {datetime.now(UTC):%Y-%m-%d}"
    base, says = load_sheet("host", BASE_HOST), f"measured without a GPU: {on}"
    fits = spec_fit.host_on_cpu_fits(op_us, on)
    _write(out, spec_fit.sheet_json("host", fits, base, out.stem, says=says))
    return {"emulated": False, "machine": on, "op_us": op_us, "usual_op_us": base["op_us"],
            "files": {"host": out}}  # fmt: skip


def _card_and_host(args: Args, console: Screen) -> Found:
    card: Path = args.out or Path("out/card.json")
    files = {"card": card, "host": card.with_name(f"{card.stem}-host.json")}
    backend = options.backend_of(args.device, console)
    from mini_engine.bench import spec_fit
    from mini_engine.bench.calibrate import measure, sizes_for
    from mini_engine.bench.evidence import CALIBRATED, write_measurement

    measurement, own, path = options.begun("calibration", backend, args.typed)
    if not (base_name := args.base or own):
        known = ", ".join(names("card"))
        raise ValueError(f"no card of {measurement.gpu} ships: give one of {known} with --base")
    emulated, evidence = measurement.emulated, args.evidence or path
    base, host = load_sheet("card", base_name), "laptop" if emulated else BASE_HOST
    figures = dict(measure(backend, sizes_for(backend), options.dtype_of(backend)))
    write_measurement(evidence, replace(measurement, figures=figures))
    device = "emulated" if emulated else own or base.name
    about: dict[str, Any] = {"evidence": evidence.name, "emulated": emulated}
    name, own_base = f"{device}{CALIBRATED}", args.base is None and not emulated
    fits = spec_fit.card_fits(figures, base)
    _write(card, spec_fit.sheet_json("card", fits, base, name, own_base=own_base, **about))
    fits, name = spec_fit.host_fits(figures), f"{device}-host{CALIBRATED}"
    base = load_sheet("host", host)
    about["says"] = "the host of a calibration"
    _write(files["host"], spec_fit.sheet_json("host", fits, base, name, **about))
    load_spec(*files.values())  # raises where the simulator could not read them
    return {"machine": measurement.gpu, "emulated": emulated, "evidence": evidence, "files": files}


def show(r: Args, console: Screen) -> None:
    if r.emulated:
        console.print(options.EMULATED)
    console.print(f"Measured on {r.machine}.")
    for kind, figures in r.figures.items():
        rows = [(name, f"{value:,.6g}", source) for name, value, source in figures]
        console.print(table((f"<{kind}", "value", "<from"), rows))
    if r.op_us:
        cost = "{median:.1f} µs ({low:.1f} to {high:.1f})".format(**r.op_us)
        console.print(
            f"An op costs a PyTorch program here {cost}, on CPU tensors; a launch on a GPU comes "
            f"on top. The usual server: {r.usual_op_us:g} µs, launch included."
        )
    words = [f"--{kind} {path}".replace("--card", "--spec") for kind, path in r.files.items()]
    console.print(f"use it: crossover {' '.join(words)}")


def _write(path: Path, sheet: dict[str, Any]) -> None:
    write_whole(path, json.dumps(sheet, indent=2, ensure_ascii=False) + "\n")
