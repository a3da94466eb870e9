"""Traces of requests: when each arrived, how long its prompt was, how many tokens it got.

A trace is CSV with a header, or JSON lines; `Columns` says which column holds what. The result file
of a benchmark is a JSON object with a list of all requests in each field."""

import csv
import math
import random
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from statistics import NormalDist

from mini_engine.files import in_short, parse_json

EPOCH, MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
SHIPPED_TRACE = Path(__file__).parent / "traces" / "synthetic.jsonl"  # synthetic_trace(500, seed=0)


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace; its prompt and output have at least 1 token."""

    arrival_us: float
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int = 0  # all prompts begin with the same, as far as this says and they go
    prefix: int = 0  # or rather, all that have the same number here


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a trace by name: arrival time, tokens of the prompt, tokens of the answer."""

    time: str | None  # without one, all requests arrive at once
    prompt: str
    new: str
    unit_us: float = 1e6  # of a time that is a number

    @property
    def named(self) -> tuple[str, ...]:
        return tuple(name for name in (self.time, self.prompt, self.new) if name)


KNOWN = (
    Columns("arrival_s", "prompt_tokens", "output_tokens"),  # the shipped trace
    # Azure, 2023 and 2024: https://github.com/Azure/AzurePublicDataset
    Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    # BurstGPT: https://github.com/HPMLL/BurstGPT; a request that failed has 0 response tokens
    Columns("Timestamp", "Request tokens", "Response tokens"),
    # Mooncake, in ms: https://github.com/kvcache-ai/Mooncake; its hash_ids are not read
    Columns("timestamp", "input_length", "output_length", unit_us=1e3),
    # `vllm bench serve --save-result --save-detailed`; earlier versions wrote no start_times
    Columns("start_times", "input_lens", "output_lens"),
    Columns(None, "input_lens", "output_lens"),
)


class Trace(list[TraceRequest]):
    """The requests of a file, and what the file says besides."""

    failed: int = 0  # rows with 0 new tokens, which are left out
    timed: bool = True  # False: the file has no arrival times, and all requests arrive at once


def read_trace(path: str | Path, columns: Columns | None = None) -> Trace:
    """The requests in order of arrival, the first of them at time 0. Without `columns`, the trace
    is one of `KNOWN`. Raises OSError where the file cannot be opened, and ValueError, which names
    file, line, column and value, for a bad row, missing columns, and a file without any request."""
    read: list[tuple[float, int, int]] = []
    number = 0

    def lines() -> Iterator[str]:
        nonlocal number
        for line in file:
            number += 1
            if not line.isspace():
                yield line

    # A byte that is not UTF-8 spoils its own row, not the file; utf-8-sig drops Excel's mark.
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        try:
            names, rows = _names_and_rows(lines())
            columns = columns or _known(names)
            for row in rows:
                read += _requests(row, columns)
        except (ValueError, csv.Error) as error:
            raise ValueError(f"{path} line {number}: {error}") from None
    trace = Trace()
    served = sorted((one for one in read if one[2]), key=lambda one: one[0])
    trace += [TraceRequest(us - served[0][0], prompt, new) for us, prompt, new in served]
    trace.failed = len(read) - len(served)
    trace.timed = columns.time is not None
    if not trace:
        raise ValueError(f"{path}: no request in it that got a token")
    return trace


def _names_and_rows(lines: Iterator[str]) -> tuple[list[str], Iterator[dict[str, object]]]:
    """The names in a file's first line, and its rows: values by name."""
    first = next(lines, "").lstrip()
    if not first:
        raise ValueError("the file is empty")
    if first.startswith("{"):
        if first.strip() == "{":  # one object, written over many lines
            first += "".join(lines)
        row = _json_row(first)
        return list(row), chain([row], map(_json_row, lines))
    mark = max(",;\t", key=first.count)
    names = [name.strip() for name in next(csv.reader([first], delimiter=mark))]

    def row_of(fields: list[str]) -> dict[str, object]:
        if len(fields) != len(names):
            raise ValueError(f"{len(fields)} fields, and the header has {len(names)}")
        return dict(zip(names, fields, strict=True))

    return names, map(row_of, csv.reader(lines, delimiter=mark))


def _json_row(line: str) -> dict[str, object]:
    row = parse_json(line, "the line")
    if not isinstance(row, dict):
        raise ValueError(f"expected an object, got {in_short(row)}")
    return row


def _known(names: list[str]) -> Columns:
    for columns in KNOWN:
        if {*columns.named} <= {*names}:
            return columns
    known = "; ".join(",".join(columns.named) for columns in KNOWN)
    raise ValueError(f"columns {in_short(','.join(names))}: expected those of a known trace "
                     f"({known}), or --columns time=NAME,prompt=NAME,new=NAME")  # fmt: skip


def _requests(row: dict[str, object], columns: Columns) -> Iterator[tuple[float, int, int]]:
    """The requests of a row: (us, prompt tokens, new tokens). More than one where it has lists."""
    if missing := [name for name in columns.named if name not in row]:
        raise ValueError(f"no column {', '.join(missing)} among {in_short(','.join(row))}")
    values = [row[name] for name in columns.named]
    lists = [value for value in values if isinstance(value, list)]
    if len(set(lengths := [len(value) for value in lists])) > 1:
        raise ValueError(f"{', '.join(columns.named)} have {lengths} values")
    for *time, prompt, new in zip(*lists, strict=True) if len(lists) == len(values) else [values]:
        us = _us(columns, time[0]) if time else 0.0
        tokens = _count(columns.new, new, least=0)
        # A request that failed may have no prompt either.
        yield us, _count(columns.prompt, prompt, least=min(1, tokens)), tokens


def _us(columns: Columns, value: object) -> float:
    """An arrival: a number, or a date and time, which without a zone is UTC."""
    text = str(value).strip()
    with suppress(ValueError):
        us = float(text) * columns.unit_us
        if 0 <= us < 1e18:
            return round(us, 3)  # to the nanosecond, so that 0.3 s is 300,000 us and no less
    try:
        time = datetime.fromisoformat(text)  # digits beyond the sixth are dropped
    except ValueError:
        raise ValueError(f"{columns.time} {in_short(value)} is no time: expected a number from 0 "
                         "on, or a date like 2023-11-16 18:15:46.680590") from None  # fmt: skip
    return (time.replace(tzinfo=time.tzinfo or UTC) - EPOCH) // MICROSECOND


def _count(column: str, value: object, least: int) -> int:
    number = int(value) if isinstance(value, str) and value.strip().isdecimal() else value
    if type(number) is not int or not least <= number < 10**15:
        raise ValueError(f"{column} {in_short(value)} is not a whole number of at least {least}")
    return number


def synthetic_trace(
    num_requests: int, seed: int, *, requests_per_s: float = 5.0, median_prompt_tokens: int = 600
) -> Iterator[TraceRequest]:
    """Random requests, the same for the same arguments: `random.random` does not change.

    Arrivals are a Poisson process (independent users). Lengths are log-normal, with many short ones
    and a long tail: prompts with sigma 1, cut at 8192, outputs with sigma 0.8 around 150, cut at
    1000."""
    rng, normal, arrival_us = random.Random(seed), NormalDist(), 0.0

    def length(median: int, sigma: float, most: int) -> int:
        tokens = median * math.exp(sigma * normal.inv_cdf(rng.random() or 0.5))
        return min(most, max(1, round(tokens)))

    for _ in range(num_requests):
        prompt, output = length(median_prompt_tokens, 1.0, 8192), length(150, 0.8, 1000)
        yield TraceRequest(round(arrival_us), prompt, output)
        arrival_us += -math.log(1 - rng.random()) / requests_per_s * 1e6


def with_shared_prefix(
    requests: Iterable[TraceRequest], tokens: int, share: float, seed: int = 0, prefixes: int = 1
) -> Iterator[TraceRequest]:
    """The requests, of which about `share` (0 to 1), chosen at random, begin with the same `tokens`
    tokens, as with one system prompt. A shorter prompt is a beginning of it. Lengths stay.
    With more `prefixes` than one, each begins with one of so many."""
    rng = random.Random(seed)
    for request in requests:
        shared = tokens if rng.random() < share else 0
        prefix = rng.randrange(prefixes) if prefixes > 1 else 0
        yield replace(request, shared_tokens=shared, prefix=prefix)
