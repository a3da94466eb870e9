"""Measure what this machine charges, and write it down as a card and a host to predict with.

  python -m mini_engine calibrate -o out/card.json          # and out/card-host.json beside it
  python -m mini_engine calibrate --host                    # the host alone, in seconds, anywhere
  python -m mini_engine crossover --spec out/card.json --host out/card-host.json

Measured are the CPU time of an op, of a launch, of a graph's launch, capture and nodes; gaps
between kernels; the bandwidth of a copy and of a product of one row; a large product; copies of
inputs and of a token. The rest is taken from --base. Without a GPU all runs on the CPU emulator,
which is no evidence. --host measures on CPU tensors what an op costs here.
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

    from mini_engine.bench.calibrate import op_on_cpu_us
    from mini_engine.bench.spec_fit import host_on_cpu_fits

    out, op_us = args.out or Path("out/my-host.json"), op_on_cpu_us(HOST_STEPS)
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    named = re.search(r"^model name\s*: (.+)", text, re.MULTILINE)
    on = f"{named[1] if named else platform.machine()}, Python {platform.python_version()}, "
    on += f"PyTorch {torch.__version__}, {datetime.now(UTC):%Y-%m-%d}"
    base, says = load_sheet("host", BASE_HOST), f"measured without a GPU: {on}"
    _write(out, "host", host_on_cpu_fits(op_us, on), base, out.stem, says=says)
    return {"emulated": False, "machine": on, "op_us": op_us, "usual_op_us": base["op_us"],
            "files": {"host": out}}  # fmt: skip


def _card_and_host(args: Args, console: Screen) -> Found:
    backend = options.backend_of(args.device, console)
    from mini_engine.bench.calibrate import measure, sizes_for
    from mini_engine.bench.evidence import CALIBRATED, write_measurement
    from mini_engine.bench.spec_fit import begun, card_fits, host_fits
    from mini_engine.cuda.graphs.backend import measured_dtype

    card: Path = args.out or Path("out/card.json")
    files = {"card": card, "host": card.with_name(f"{card.stem}-host.json")}
    measurement, own, path = begun("calibration", backend.device.type, args.typed)
    if not (base_name := args.base or own):
        known = ", ".join(names("card"))
        raise ValueError(f"no card of {measurement.gpu} ships: give one of {known} with --base")
    emulated, evidence = measurement.emulated, args.evidence or path
    figures = dict(measure(backend, sizes_for(backend), measured_dtype(backend)))
    write_measurement(evidence, replace(measurement, figures=figures))
    about: Found = {"evidence": evidence.name, "emulated": emulated}
    base, own_base = load_sheet("card", base_name), args.base is None and not emulated
    device, fits = "emulated" if emulated else own or base.name, card_fits(figures, base)
    _write(card, "card", fits, base, f"{device}{CALIBRATED}", own_base=own_base, **about)
    base, name = load_sheet("host", "laptop" if emulated else BASE_HOST), f"{device}-host"
    about["says"] = "the host of a calibration"
    _write(files["host"], "host", host_fits(figures), base, f"{name}{CALIBRATED}", **about)
    load_spec(*files.values())  # raises where the simulator could not read them
    return {"machine": measurement.gpu, "emulated": emulated, "evidence": evidence, "files": files}


def _write(path: Path, *sheet: Any, **about: Any) -> None:
    from mini_engine.bench.spec_fit import sheet_json

    content = json.dumps(sheet_json(*sheet, **about), indent=2, ensure_ascii=False)
    write_whole(path, f"{content}\n")


def show(r: Args, console: Screen) -> None:
    if r.emulated:
        console.print(options.EMULATED)
    console.print(f"Measured on {r.machine}.")
    for kind, figures in r.figures.items():
        rows = [(name, f"{value:,.6g}", source) for name, value, source in figures]
        console.print(table((f"<{kind}", "value", "<from"), rows))
    if r.op_us:
        cost = "{median:.1f} µs ({low:.1f} to {high:.1f})".format(**r.op_us)
        console.print(f"An op costs a PyTorch program here {cost}, on CPU tensors; a launch on a "
                      f"GPU comes on top. The usual server: {r.usual_op_us:g} µs, launch included."
                      )  # fmt: skip
    words = [f"--{kind} {path}".replace("--card", "--spec") for kind, path in r.files.items()]
    console.print(f"use it: crossover {' '.join(words)}")
