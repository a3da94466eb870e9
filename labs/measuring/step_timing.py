"""Decode steps, one variant against another, predicted before they are shown: labs 13 and 14.

In:  a `Race`: which of the bench's variants run, under which names. Words:
     --predict "batch=1 eager=2.0 full=0.6" (ms, once for each batch); asked for if not given.
Out: predictions in the ledger, then
     on a GPU      `mini_engine bench --quick` with the learner's stopwatch in it; each prediction
                   next to its measurement, which goes into the ledger; and the ledger's picture
     without one   the same program on the CPU emulator, which shows that it runs and measures
                   nothing; then the captured run, or "not yet measured" and the command that does
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from labs.measuring import ledger
from labs.runner import command, workspace
from mini_engine import cli
from mini_engine.bench.evidence import Measurement, load_evidence, read_measurement
from mini_engine.bench.rows import MEASURED, Row

SHAPE, BATCHES, CONTEXT = "qwen3-0.6b", (1, 8), 512
Predictions = dict[tuple[int, str], float]  # (batch, name) -> ms
PredictedFor = tuple[str | None, str | None]  # --spec and --host, a card and a host


@dataclass(frozen=True)
class Race:
    """Which variants run against each other."""

    folder: Path  # of the lab; its captured runs lie in captured/*.json
    variants: Mapping[str, str]  # the learner's name -> the bench's, slowest expected first
    emulated: tuple[str, ...] = ()  # names of those that the CPU emulator runs within seconds
    required: bool = True  # without a prediction nothing is shown

    @property
    def lab(self) -> int:
        return int(self.folder.name[3:5])

    @property
    def example(self) -> str:
        """An example of --predict; its numbers give nothing away."""
        return "batch=1 " + " ".join(f"{name}=3.0" for name in self.variants)


def main(race: Race, words: Sequence[str]) -> int:
    """Run it. Returns the exit code, which is 2 if nothing was predicted."""
    parser = argparse.ArgumentParser(prog=f"./lab measure {race.lab}")
    parser.add_argument(
        "--predict", action="append", default=[], metavar="WORDS", help=f'"{race.example}", in ms'
    )
    parser.add_argument(
        "--spec", help="the card for the simulator's prediction: a file of `calibrate`"
    )
    parser.add_argument("--host", help="and the host, a file that `calibrate` writes beside it")
    args = parser.parse_args(list(words))
    console = Console(highlight=False)
    try:
        said = parsed(args.predict, race.variants) or asked(race)
        if not said and race.required:
            print(f'Say first: --predict "{race.example}" (ms a token)', file=sys.stderr)
            return 2
        for (batch, name), ms in said.items():
            ledger.predict(title(batch, name), ms, "ms")
        if said:
            console.print(f"Your {len(said)} predictions are in the ledger: {command('ledger')}\n")
        reason = why_not()
        if reason is None:
            return on_the_gpu(race, said, (args.spec, args.host), console)
        if race.emulated:
            emulated(race, reason, console)
        captured(race, said, console)
    except ValueError as error:
        print(f"labs measure {race.lab}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def parsed(texts: Iterable[str], names: Iterable[str]) -> Predictions:
    """`["batch=1 eager=2.0"]` as numbers. Raises ValueError for a word it cannot read."""
    known, found = list(names), Predictions()
    for text in texts:
        batch = None
        for word in text.replace(",", " ").split():
            name, _, value = word.partition("=")
            try:
                if name == "batch":
                    batch = int(value)
                elif name in known and batch is not None:
                    found[batch, name] = float(value)
                else:
                    raise ValueError
            except ValueError:
                raise ValueError(
                    f"--predict: {word!r} is not understood; expected batch=1 first, then ms for "
                    f"some of {', '.join(f'{n}=…' for n in known)}"
                ) from None
    wrong = [batch for batch, _ in found if batch not in BATCHES]
    if wrong:
        raise ValueError(f"--predict: batch={wrong[0]}, measured are {BATCHES[0]} and {BATCHES[1]}")
    return found


def asked(race: Race) -> Predictions:
    """Ask for the predictions one by one if somebody is at the terminal."""
    if not sys.stdin.isatty():
        return {}
    print(f"ITL of {SHAPE} at {CONTEXT} tokens of context, in ms. An empty line: no prediction.")
    texts = []
    for batch in BATCHES:
        for name in race.variants:
            value = input(f"  batch {batch}, {name}: ").strip()
            texts += [f"batch={batch} {name}={value}"] if value else []
    return parsed(texts, race.variants)


def title(batch: int, name: str) -> str:
    """What the ledger calls it."""
    return f"ITL {SHAPE}, batch {batch}, {name}"


def why_not() -> str | None:
    """Why nothing can be measured here, in one line; None if it can."""
    from mini_engine.cuda.graphs.backend import why_no_gpu

    return why_no_gpu()


# ---------------------------------------------------------------- measured, emulated, captured


def on_the_gpu(race: Race, said: Predictions, on: PredictedFor, console: Console) -> int:
    """Measure, compare, close the predictions in the ledger, draw."""
    out = workspace.home() / race.folder.name / "bench.json"
    code = cli.main(bench_words(race, on, out))
    if code:
        return code
    measurement = load_evidence(out)
    compare(race, said, measurement, console)
    close(race, said, measurement, measurement.gpu)
    picture = workspace.home() / "ledger.png"
    with contextlib.suppress(ValueError):  # none of the predicted variants could run
        ledger.plot(ledger.entries(), picture)
        console.print(f"\nall your predictions so far, and what was measured: {picture}")
    return 0


def bench_words(race: Race, on: PredictedFor, out: Path) -> list[str]:
    """The command that measures."""
    batches = ",".join(map(str, BATCHES))
    words = ["bench", "--quick", "--device", "cuda", "--shape", SHAPE, "--batch", batches]
    words += ["--context", str(CONTEXT), "--arms", ",".join(race.variants.values())]
    for option, word in zip(("--spec", "--host"), on, strict=True):
        words += [option, word] if word else []
    return [*words, "-o", str(out)]


def emulated(race: Race, reason: str, console: Console) -> None:
    """Show on the CPU that the same program runs. None of it goes into the ledger."""
    import torch

    torch.set_num_threads(1)  # tiny ops: threads would only wait for each other
    out = workspace.home() / race.folder.name / "bench-emulated.json"
    variants = ",".join(race.variants[name] for name in race.emulated)
    words = ["bench", "--device", "cpu", "--batch", "1", "--arms", variants, "--json"]
    words += ["-o", str(out)]
    with contextlib.redirect_stdout(io.StringIO()):
        code = cli.main(words)
    if code:
        raise ValueError(f"the emulated run ended with code {code}")
    rows = rows_of(read_measurement(out))
    console.print(f"[bold]EMULATED[/bold]: {reason}.")
    console.print("A tiny model on the CPU emulator shows that everything runs. Its times say")
    console.print("nothing about a GPU, and the ledger takes none of them:")
    for name in race.emulated:
        row = row_of(rows, race.variants[name], 1)
        told = row.reason
        if row.status == MEASURED:
            gate = "FAILED" if row.failed_gate else "passed"
            told = f"{row.itl_us:,.0f} µs a step of this CPU, gate {gate}"
        console.print(f"  {name:10} {told}", soft_wrap=True)
    console.print()


def captured(race: Race, said: Predictions, console: Console) -> None:
    """Show this project's runs on a real GPU, if any are kept."""
    runs = sorted((race.folder / "captured").glob("*.json"))
    for index, path in enumerate(runs):
        measurement = load_evidence(path)
        console.print(f"[bold]Captured[/bold] on {measurement.gpu}, {measurement.date[:10]}, by")
        console.print(f"  {measurement.command}", soft_wrap=True)
        compare(race, said, measurement, console)
        if index == 0:  # a prediction is closed once
            close(race, said, measurement, f"{measurement.gpu}, captured {measurement.date[:10]}")
    if not runs:
        line = shlex.join(
            [".venv/bin/python", "-m", "mini_engine", *bench_words(race, (None, None), OUT)]
        )
        console.print("[bold]Not yet measured[/bold]: no run on a GPU has been kept. On a machine")
        console.print(f"with one, `./lab measure {race.lab}` closes your predictions. It runs:")
        console.print(f"  {line}", soft_wrap=True)


OUT = Path("out/bench.json")


def compare(race: Race, said: Predictions, measurement: Measurement, console: Console) -> None:
    """Print what you predicted, what the simulator predicted, and what was measured."""
    rows = rows_of(measurement)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", no_wrap=True)
    for column in ("you said ms", "simulator ms", "measured ms", "you", "simulator"):
        table.add_column(column, justify="right")
    for batch in BATCHES:
        for name, variant in race.variants.items():
            row, mine = row_of(rows, variant, batch), said.get((batch, name))
            first = [f"batch {batch} {name}", "" if mine is None else f"{mine:.3g}"]
            if row.status != MEASURED:
                table.add_row(*first, "", row.status)
                continue
            ms, predicted = row.itl_us / 1e3, row.predicted_us / 1e3
            off = "" if mine is None else f"{100 * (mine / ms - 1):+.0f}%"
            table.add_row(
                *first, f"{predicted:.3g}", f"{ms:.4g}", off, f"{100 * (predicted / ms - 1):+.0f}%"
            )
    console.print(table)
    for line in notes(race, rows):
        console.print(line, soft_wrap=True)


def notes(race: Race, rows: Sequence[Row]) -> list[str]:
    """What the table shows: each variant against the one before, at each batch size."""
    told = []
    for batch in BATCHES:
        found = [(name, row_of(rows, variant, batch)) for name, variant in race.variants.items()]
        ran = [(name, row.itl) for name, row in found if row.status == MEASURED]
        for (before, old), (name, new) in itertools.pairwise(ran):
            percent = 100 * (new.median / old.median - 1)
            line = f"batch {batch}: {name} takes {abs(percent):.0f}% "
            line += f"{'less' if percent < 0 else 'more'} than {before}"
            apart = new.high < old.low or new.low > old.high
            told.append(line if apart else f"{line}, but the intervals overlap: no difference")
    return told


def close(race: Race, said: Predictions, measurement: Measurement, on: str) -> None:
    """Write the measurements into the ledger, for each prediction whose variant ran."""
    for batch, name in said:
        row = row_of(rows_of(measurement), race.variants[name], batch)
        if row.status == MEASURED:
            ledger.measure(
                title(batch, name), row.itl_us / 1e3, "ms", on=on, command=measurement.command,
                low=row.itl.low / 1e3, high=row.itl.high / 1e3,
            )  # fmt: skip


def rows_of(measurement: Measurement) -> list[Row]:
    return [Row.from_json(row) for row in measurement.figures["rows"]]


def row_of(rows: Iterable[Row], variant: str, batch: int) -> Row:
    """The row of a variant at a batch size, or one that says "not there"."""
    for row in rows:
        if (row.variant, row.batch) == (variant, batch):
            return row
    return Row(SHAPE, batch, CONTEXT, variant, "not there", "the run has no such row")
