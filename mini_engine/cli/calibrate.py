"""Measure what this machine charges, and write it down as a card and a host to predict with.

  python -m mini_engine calibrate -o out/card.json          # and out/card-host.json beside it
  python -m mini_engine calibrate --host                    # the host alone, in seconds, anywhere
  python -m mini_engine crossover --spec out/card.json --host out/card-host.json

Measured are the CPU time of an op, of a launch, of a graph's launch, capture and nodes; gaps
between kernels; the bandwidth of a copy and of products; copies of inputs and of a token. The rest
is taken from --base. Without a GPU all runs on the CPU emulator, which is no evidence.
"""

import json
import platform
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from mini_engine.cli import options
from mini_engine.cli.terminal import Args, Found, Screen, form, table
from mini_engine.files import write_whole
from mini_engine.step.cards import FIGURES, load_sheet, names

BASE_HOST = "server"  # where the figures of a host come from that are not measured
SHARED = "device"
OUT = "the card, with the host in NAME-host.json beside it (default: out/card.json), or with --host"
OPTIONS: options.Rows = {
    "--host": (bool, None, "measure only what an op costs the host; needs no GPU"),
    "--base CARD": (str, None, "where to take the rest (default: the card of this GPU)"),
    "-o --out JSON": (options.json_out, None, f"{OUT} the host (default: out/my-host.json)"),
    "--evidence JSON": (options.json_out, None, "measurements (default: by the GPU)")}  # fmt: skip


def run(args: Args, console: Screen) -> Found:
    if args.host and (args.base or args.evidence or args.device == "cuda"):
        raise ValueError("--host measures no GPU: leave out --base, --evidence and --device cuda")
    with console.status("measuring"):
        found = _host_alone(args) if args.host else _card_and_host(args, console)
    figures, sheets = {}, found.pop("sheets")
    for kind, path in found["files"].items():
        write_whole(path, json.dumps(sheets[kind], indent=2, ensure_ascii=False) + "\n")
        sheet = load_sheet(kind, path)  # raises where no command could read it
        figures[kind] = [(name, sheet[name], sheet.figures[name].kind) for name in FIGURES[kind]]
    return {"op_us": None, **found, "figures": figures}


def _host_alone(args: Args) -> Found:
    import torch

    from mini_engine.bench.calibrate import op_on_cpu_us
    from mini_engine.bench.spec_fit import host_on_cpu_fits, sheet_json

    out, op_us = args.out or Path("out/my-host.json"), op_on_cpu_us(300)
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    named = re.search(r"^model name\s*: (.+)", text, re.MULTILINE)
    on = f"{named[1] if named else platform.machine()}, Python {platform.python_version()}, "
    on += f"PyTorch {torch.__version__}, {datetime.now(UTC):%Y-%m-%d}"
    base, says = load_sheet("host", BASE_HOST), f"measured without a GPU: {on}"
    host = sheet_json("host", host_on_cpu_fits(op_us, on), base, out.stem, says=says)
    return {"emulated": False, "machine": on, "op_us": op_us, "usual_op_us": base["op_us"],
            "files": {"host": out}, "sheets": {"host": host}}  # fmt: skip


def _card_and_host(args: Args, console: Screen) -> Found:
    from mini_engine.bench.calibrate import measure, sizes_for
    from mini_engine.bench.evidence import CALIBRATED, write_measurement
    from mini_engine.bench.spec_fit import begun, card_fits, host_fits, sheet_json
    from mini_engine.cuda.generate import nearest_backend
    from mini_engine.cuda.graphs.backend import measured_dtype

    backend = nearest_backend(console.print, args.device)
    measurement, own, path = begun("calibration", backend.device.type, args.typed)
    if not (base_name := args.base or own):
        known = ", ".join(names("card"))
        raise ValueError(f"no card of {measurement.gpu} ships: give one of {known} with --base")
    emulated, evidence = measurement.emulated, args.evidence or path
    figures = dict(measure(backend, sizes_for(backend), measured_dtype(backend)))
    write_measurement(evidence, replace(measurement, figures=figures))
    about: Found = {"evidence": evidence.name, "emulated": emulated}
    base, out = load_sheet("card", base_name), args.out or Path("out/card.json")
    device, own_base = "emulated" if emulated else own or base.name, not (args.base or emulated)
    card = sheet_json("card", card_fits(figures, base), base, f"{device}{CALIBRATED}",
                      own_base=own_base, **about)  # fmt: skip
    base, name = load_sheet("host", "laptop" if emulated else BASE_HOST), f"{device}-host"
    about["says"] = "the host of a calibration"
    host = sheet_json("host", host_fits(figures), base, f"{name}{CALIBRATED}", **about)
    files = {"card": out, "host": out.with_name(f"{out.stem}-host.json")}
    return {"machine": measurement.gpu, "emulated": emulated, "evidence": evidence,
            "files": files, "sheets": {"card": card, "host": host}}  # fmt: skip


def show(r: Args, console: Screen) -> None:
    if r.emulated:
        console.print(options.EMULATED)
    console.print(f"Measured on {r.machine}.")
    for kind, figures in r.figures.items():
        columns = {f"<{kind}": "{0[0]}", "value": "{0[1]:,.6g}", "<from": "{0[2]}"}
        console.print(table(columns, figures))
    if r.op_us:
        cost = form("{median:.1f} µs ({low:.1f} to {high:.1f})", **r.op_us)
        console.print(f"An op costs a PyTorch program here {cost}, on CPU tensors; a launch on a "
                      f"GPU comes on top. The usual server: {r.usual_op_us:g} µs, launch included."
                      )  # fmt: skip
    words = [f"--{kind} {path}".replace("--card", "--spec") for kind, path in r.files.items()]
    console.print(f"use it: crossover {' '.join(words)}")
