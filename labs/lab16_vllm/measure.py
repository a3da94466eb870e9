"""The measuring step of lab 16: a real vLLM three ways, its ladder, its modes, its ITL.

In:  --predict "batch=1 eager=… compiled=… graphs=…" in ms; model, limits and batches as options;
     --log and --result: files of a server of your own, which are read instead (own_run.py).
Out: predictions in the ledger; then, with vLLM and a GPU, each variant is served and measured, and
     everything that was read stands beside what this engine's policy and model say. Without them
     the captured run, or "not yet measured", what others have published, and the exact commands.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from labs.lab16_vllm.own_run import show_own
from labs.lab16_vllm.published import told
from labs.lab16_vllm.server import last_lines, served
from labs.lab16_vllm.vllm_run import (
    VARIANTS,
    Setup,
    bench_command,
    captured_graphs,
    expected_graphs,
    latency,
    predicted_itl_ms,
    read_startup,
    serve_command,
)
from labs.measuring import ledger
from labs.measuring.step_timing import Predictions, parsed
from labs.runner import command, workspace
from labs.runner.doctor import nvidia_gpu
from mini_engine.bench.evidence import (
    Measurement,
    load_evidence,
    new_measurement,
    write_measurement,
)
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.files import read_object
from mini_engine.step.cards import DeviceSpec, load_spec

HERE = Path(__file__).parent
BATCHES, CONTEXT, TOKENS = (1, 8), 512, 128
BENCH_S = 900


def main(words: Sequence[str]) -> int:
    """Run it. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="./lab measure 16")
    parser.add_argument(
        "--predict", action="append", default=[], metavar="WORDS",
        help='"batch=1 eager=… compiled=… graphs=…", in ms',
    )  # fmt: skip
    known = Setup()
    parser.add_argument("--model", default=known.model, help=f"(default: {known.model})")
    parser.add_argument("--shape", default=known.shape, help="the same, as mini_engine names it")
    parser.add_argument("--max-num-seqs", type=int, default=known.max_num_seqs, metavar="N")
    parser.add_argument(
        "--max-num-batched-tokens", type=int, default=known.max_num_batched_tokens, metavar="N"
    )
    parser.add_argument("--log", metavar="FILE", help="read the start-up log of your own server")
    parser.add_argument(
        "--result", metavar="FILE", help="read a result of `vllm bench serve --save-detailed`"
    )
    parser.add_argument("--port", type=int, default=known.port)
    parser.add_argument("--spec", default="h200", help="predict for this card (default: h200)")
    parser.add_argument("--host", help="and this host (default: vLLM's usual one, server)")
    args = parser.parse_args(list(words))
    setup = Setup(
        args.model, args.shape, args.max_num_seqs, args.max_num_batched_tokens, port=args.port
    )
    console = Console(highlight=False)
    try:
        if args.log or args.result:
            show_own(args.log, args.result, setup, load_spec(args.spec, args.host), console)
            return 0
        said = parsed(args.predict, VARIANTS)
        for (batch, variant), ms in said.items():
            ledger.predict(title(setup, batch, variant), ms, "ms")
        reason = why_not()
        if reason:
            without(setup, said, reason, load_spec(args.spec, args.host), console)
            return 0
        line = shlex.join(["./lab", "measure", "16", *words])
        measurement = measured(setup, (args.spec, args.host), line, console)
    except (ValueError, OSError, subprocess.SubprocessError) as error:
        print(f"labs measure 16: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    show(measurement, said, console)
    close(measurement, said, measurement.gpu)
    return 0


def title(setup: Setup, batch: int, variant: str) -> str:
    """What stands in the ledger."""
    return f"ITL vLLM {setup.shape}, batch {batch}, {variant}"


def why_not() -> str | None:
    """Why nothing can be measured here, in one line; None where it can."""
    if shutil.which("vllm") is None:
        return "there is no `vllm` here (pip install vllm, into an environment of its own)"
    return None if nvidia_gpu() else "there is no NVIDIA GPU here"


# ---------------------------------------------------------------- measured


def measured(setup: Setup, on: tuple[str, str | None], line: str, console: Console) -> Measurement:
    """Serve and measure every variant. The file is written after each one, with the card and host
    to predict for."""
    folder = workspace.home() / HERE.name
    folder.mkdir(parents=True, exist_ok=True)
    variants: dict[str, Any] = {}
    for variant in VARIANTS:
        console.print(f"{variant}: {shlex.join(serve_command(setup, variant))}", soft_wrap=True)
        variants[variant] = run_variant(setup, variant, folder)
        figures = {"setup": asdict(setup), "context": CONTEXT, "tokens": TOKENS, "spec": on[0],
                   "host": on[1], "variants": variants}  # fmt: skip
        measurement = new_measurement("vllm", "cuda", line, figures)
        write_measurement(folder / "vllm.json", measurement)
    console.print(f"\nlogs, results and figures: {folder}\n")
    return measurement


def run_variant(setup: Setup, variant: str, folder: Path) -> dict[str, Any]:
    """One server, its log, and a benchmark at each batch."""
    log = folder / f"{variant}.log"
    found = {}
    with served(serve_command(setup, variant), setup.port, log):
        for batch in BATCHES:
            out = folder / f"{variant}-{batch}.json"
            out.unlink(missing_ok=True)
            words = bench_command(setup, batch, CONTEXT, TOKENS, str(out))
            done = subprocess.run(words, capture_output=True, text=True, timeout=BENCH_S)
            if done.returncode or not out.exists():
                raise ValueError(f"{shlex.join(words)}: {last_lines(done.stdout + done.stderr)}")
            found[str(batch)] = asdict(latency(read_object(out)))
    text = log.read_text(encoding="utf-8", errors="replace")
    return {
        "start_up": asdict(read_startup(text)),
        "captured": captured_graphs(text),
        "latency": found,
    }


# ---------------------------------------------------------------- shown


def without(
    setup: Setup, said: Predictions, reason: str, spec: DeviceSpec, console: Console
) -> None:
    """The captured run if there is one; else what to type, and what to expect of it."""
    runs = sorted((HERE / "captured").glob("*.json"))
    for index, path in enumerate(runs):
        measurement = load_evidence(path)
        console.print(f"[bold]Captured[/bold] on {measurement.gpu}, {measurement.date[:10]}, by")
        console.print(f"  {measurement.command}\n", soft_wrap=True)
        show(measurement, said, console)
        if index == 0:
            close(measurement, said, f"{measurement.gpu}, captured {measurement.date[:10]}")
    if runs:
        return
    console.print("[bold]Not yet measured[/bold]: no run on a GPU has been kept, and here")
    console.print(f"{reason}.\n", soft_wrap=True)
    sizes = default_capture_sizes(setup.max_num_seqs, setup.max_num_batched_tokens)
    graphs = expected_graphs(sizes, "FULL_AND_PIECEWISE", setup.max_num_seqs)
    console.print(f"vLLM 0.33 should capture {len(sizes)} sizes, up to {sizes[-1]}: {graphs}.")
    console.print(
        f"Our model of vLLM for {spec.name} on the host {spec.host}: predicted ITL in ms (no "
        "HTTP, no client):\n", soft_wrap=True,
    )  # fmt: skip
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("variant", *(f"batch {batch}" for batch in BATCHES), "compile and graphs"):
        table.add_column(name, justify="right" if name.startswith("batch") else "left")
    for variant, on in VARIANTS.items():
        table.add_row(variant, *(f"{ours(setup, variant, b, spec):.2f}" for b in BATCHES), on)
    console.print(table)
    if said:
        own = "; ".join(f"batch {batch} {variant} {ms:g}" for (batch, variant), ms in said.items())
        console.print(f"\nYou said, in ms: {own}.", soft_wrap=True)
        console.print(f"It stands in your ledger: {command('ledger')}")
    console.print()
    for line in told(spec):
        console.print(line, soft_wrap=True)
    console.print("\nOf a server of your own: --log FILE --result FILE reads what it wrote.")
    console.print("\nWith vLLM 0.33 and a GPU, `./lab measure 16` runs for each variant and batch:")
    for variant in VARIANTS:
        console.print(f"  {shlex.join(serve_command(setup, variant))}", soft_wrap=True)
    for batch in BATCHES:
        words = bench_command(setup, batch, CONTEXT, TOKENS, f"VARIANT-{batch}.json")
        console.print(f"  {shlex.join(words)}", soft_wrap=True)


def ours(setup: Setup, variant: str, batch: int, spec: DeviceSpec) -> float:
    """Predicted, in ms, in the middle of the answers."""
    return predicted_itl_ms(setup, variant, batch, CONTEXT + TOKENS // 2, spec)


def show(measurement: Measurement, said: Predictions, console: Console) -> None:
    """What vLLM said and did, beside what our policy and our model say."""
    figures = measurement.figures
    setup, spec = Setup(**figures["setup"]), load_spec(figures["spec"], figures["host"])
    for variant, found in figures["variants"].items():
        start = found["start_up"]
        sizes, mode = start["capture_sizes"], start["cudagraph_mode"]
        asked = "FULL_AND_PIECEWISE" if variant == "graphs" else "NONE"
        wanted = default_capture_sizes(setup.max_num_seqs, setup.max_num_batched_tokens, mode=asked)
        graphs = expected_graphs(sizes, mode, setup.max_num_seqs)
        agree = {True: "as our policy says", False: "NOT as our policy says"}
        console.print(
            f"{variant}: vLLM {start['version']}, compile {start['compilation_mode']}, "
            f"graphs {mode}; {len(sizes)} sizes ({agree[list(sizes) == wanted]}), "
            f"captured {found['captured']} ({agree[found['captured'] == graphs]})", soft_wrap=True,
        )  # fmt: skip
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", no_wrap=True)
    for name in ("you said", "our model", "ITL p50", "mean", "p99", "TPOT", "you", "model"):
        table.add_column(name, justify="right")
    for batch in BATCHES:
        for variant, found in figures["variants"].items():
            row, mine = found["latency"][str(batch)], said.get((batch, variant))
            ms, model = row["median_itl_ms"], ours(setup, variant, batch, spec)
            times = [row[f"{name}_ms"] for name in ("mean_itl", "p99_itl", "mean_tpot")]
            table.add_row(
                f"batch {batch} {variant}", "" if mine is None else f"{mine:.3g}", f"{model:.3g}",
                f"{ms:.3f}", *(f"{value:.3f}" for value in times),
                "" if mine is None else f"{100 * (mine / ms - 1):+.0f}%",
                f"{100 * (model / ms - 1):+.0f}%",
            )  # fmt: skip
    console.print("\nms, seen by the client; our model has no HTTP and no client in it")
    console.print(table)
    for variant, found in figures["variants"].items():
        for batch, row in found["latency"].items():
            if row["tokens_per_gap"] > 1.01:
                console.print(
                    f"{variant}, batch {batch}: {row['tokens_per_gap']:.2f} tokens a gap: the "
                    "stream bundles tokens, so its gaps are longer than an ITL", soft_wrap=True
                )  # fmt: skip
    for name in our_own(setup):
        console.print(name)


def our_own(setup: Setup) -> list[str]:
    """What lab 14 measured of this engine on this machine, if it has."""
    path = workspace.home() / "lab14_measure_itl" / "bench.json"
    if not path.exists():
        return ["This engine's own ITL: ./lab measure 14"]
    told = [f"This engine's own, by lab 14 on {load_evidence(path).gpu}, on the device's clock:"]
    for row in load_evidence(path).figures["rows"]:
        if row["status"] == "measured" and row["shape"] == setup.shape:
            itl = row["itl_us"]["median"] / 1e3
            told.append(f"  batch {row['batch']} {row['variant']}: {itl:.3f} ms")
    return told


def close(measurement: Measurement, said: Mapping[tuple[int, str], float], on: str) -> None:
    """Medians into the ledger."""
    setup = Setup(**measurement.figures["setup"])
    for batch, variant in said:
        row = measurement.figures["variants"][variant]["latency"][str(batch)]
        ledger.measure(
            title(setup, batch, variant), row["median_itl_ms"], "ms", on=on,
            command=measurement.command,
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
