"""`bench --against`: other engines on the same checkpoint, into the same file.

In:  the words of --against, a file with the arms of this benchmark. Out: its rows of other engines
     (`others`), written after every process.

    names, where = parsed(["vllm=/venvs/vllm/bin/python", "vllm-eager"])
    for row, number in measure(args, out, emulated=False): ...
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mini_engine.bench.evidence import read_measurement, write_measurement
from mini_engine.bench.others import EAGER, KINDS, NAMES, OURS, kind_of
from mini_engine.bench.others.protocol import KEPT_BACK
from mini_engine.bench.others_table import beside, cells, joined, wants
from mini_engine.cli.bench_file import config_of
from mini_engine.records.other_rows import OtherRow
from mini_engine.records.rows import MEASURED, Point

LIST = "list"
Key = tuple[Point, str]


def parsed(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """(names, where each engine is) of `vllm=PYTHON`, `vllm-eager`. ValueError for another name, or
    for a place that is not there."""
    names, where = [], {}
    if LIST in words:
        raise ValueError(f"--against {','.join(words)}: {LIST} stands alone, and measures nothing")
    for word in words:
        name, given, place = word.partition("=")
        kind_of(name)
        names.append(name)
        if given and not (place and Path(place).expanduser().exists()):
            wanted = "the folder of its scripts" if name.startswith("gpt-fast") else (
                f"a Python that has {name.removesuffix(EAGER)}")  # fmt: skip
            found = f"{place} is not there" if place else "there is nothing behind ="
            raise ValueError(f"--against {word}: {found}: give {wanted}")
        if given:
            where[name.removesuffix(EAGER)] = str(Path(place).expanduser().absolute())
    return list(dict.fromkeys(names)), where


def check(args: argparse.Namespace) -> None:
    """Raises ValueError for what no engine could do, before anything is measured."""
    from mini_engine.bench.others.compare import new_tokens

    parsed(args.against)
    for word in args.shape:
        config = config_of(word)
        if not Path(word).is_dir():
            raise ValueError(
                f"--against loads a checkpoint: give --shape FOLDER, not the shape {word!r}"
            )
        batch, context = max(args.batch), max(args.context)
        room = context + new_tokens(batch, context, args.steps) + KEPT_BACK
        if room > config.max_position_embeddings:
            raise ValueError(
                f"--context {context}, batch {batch} and {args.steps} steps need {room} tokens a "
                f"request: {config.name} reaches {config.max_position_embeddings}"
            )


def measure(
    args: argparse.Namespace, out: Path, emulated: bool, deadline: float | None
) -> Iterator[tuple[OtherRow, str]]:
    """(row, "process 1 of 2") for every process, each once it is in the file. None starts after
    the deadline, a time of `time.monotonic()`."""
    from mini_engine.bench.others.compare import SECONDS, Work, compare

    if not emulated:
        give_memory_back()
    names, where = parsed(args.against)
    measurement = read_measurement(out)
    in_file = [OtherRow.from_json(row) for row in measurement.figures.get("others", ())]
    rows = {(row.point, row.engine): row for row in in_file}

    def keep(row: OtherRow) -> None:
        """Into the file, with every ratio to this engine's row that the new one may change."""
        if row.engine == OURS and row.status == MEASURED:
            row = replace(row, version=measurement.commit)
        key = row.point, row.engine
        rows[key] = joined(rows.get(key), row)
        for (point, engine), one in rows.items():
            rows[point, engine] = beside(one, rows.get((point, OURS)))
        figures = {**measurement.figures, "others": [one.as_json() for one in rows.values()]}
        write_measurement(out, replace(measurement, figures=figures))

    for word, batch, context in product(args.shape, args.batch, args.context):
        config = config_of(word)
        work = Work(
            Point(config.name, batch, context), str(Path(word).absolute()), config.vocab_size,
            args.steps, args.rounds, where, emulated, SECONDS, deadline,
        )  # fmt: skip
        for row in compare(work, names, args.processes, partial(_wanted, rows, work.point)):
            keep(row)
            number = f"process {row.runs[0].process} of {args.processes}, " if row.runs else ""
            yield rows[row.point, row.engine], number


def give_memory_back() -> None:
    """What the arms held on the GPU, which PyTorch would keep for the next ones."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()


def _wanted(rows: Mapping[Key, OtherRow], point: Point, engine: str, process: int) -> bool:
    return wants(rows.get((point, engine)), process)


def listed() -> list[dict[str, str]]:
    """Every engine: what is here, how it is installed, what -eager switches."""
    from mini_engine.bench.others.child import not_installed, version_of

    found = []
    for name, kind in KINDS.items():
        if name != OURS:
            here = "" if not kind.package or not_installed(name) else version_of(name)
            found.append({"engine": name, "here": here, "install": kind.install,
                          "written_for": kind.written_for, "eager": kind.switch})  # fmt: skip
    return found


def show_list(engines: Sequence[dict[str, str]], console: Console) -> None:
    for one in engines:
        here = f"here, version {one['here']}" if one["here"] else f"not here: {one['install']}"
        told = f"written for {one['written_for']}; {one['engine']}{EAGER}: {one['eager']}"
        console.print(f"{one['engine']}: {here}", soft_wrap=True, markup=False)
        console.print(f"  {told}", soft_wrap=True, markup=False)


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """A table a point, with the reasons of what did not run below it."""
    of_point: dict[Point, list[OtherRow]] = {}
    for row in map(OtherRow.from_json, rows):
        of_point.setdefault(row.point, []).append(row)
    for (shape, batch, context), those in of_point.items():
        where = f"[bold]{shape}[/bold], batch {batch}, context {context:,}"
        console.print(f"{where}: time between tokens, as a caller sees it")
        table = Table()
        for column in ("engine", "ITL µs", "p99 µs", f"× {OURS}", "same tokens"):
            table.add_column(column, justify="left" if column == "engine" else "right")
        for row in those:
            if row.status == MEASURED:
                cell, ratio = cells(row), row.times_ours
                times = f"{ratio.median:.3f}" if ratio.samples else "-"
                table.add_row(row.engine, f"{row.itl.median:,.1f}", cell[3], times, cell[6])
            else:
                table.add_row(row.engine, row.status)
        console.print(table)
        for row in those:
            if row.status != MEASURED:
                console.print(told(row), soft_wrap=True, markup=False)


def told(row: OtherRow) -> str:
    """What a process found out, in a line."""
    if row.status != MEASURED:
        return f"{row.engine} {row.status}: {row.reason}"
    return f"{row.engine} {row.version} {row.itl.median:,.1f} µs between tokens"


def help_words() -> str:
    """For --help."""
    return (
        f"other engines on the same checkpoint folder: some of {', '.join(NAMES[2:])}; NAME=PYTHON "
        "where another Python has it, gpt-fast=FOLDER; list: which are here, and how the others "
        "are installed. Without --arms, nothing else is timed"
    )
