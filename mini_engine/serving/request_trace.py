"""Traces of requests: when each arrived, how long its prompt was, how many tokens it got.

In:  a file in one of two formats, told apart by their first character.
     CSV as the Azure LLM inference traces have it (https://github.com/Azure/AzurePublicDataset):
         TIMESTAMP,ContextTokens,GeneratedTokens
         2023-11-16 18:15:46.6805900,374,44
     JSON lines, one request a line:
         {"arrival_s": 0.25, "prompt_tokens": 374, "output_tokens": 44}
Out: the requests in order of arrival, the first of them at time 0.

A row that cannot be read is an error that names file, row and field. Rows are numbered as in an
editor: the header is row 1.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import NormalDist

from mini_engine.files import in_short, parse_json

CSV_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
JSON_FIELDS = ("arrival_s", "prompt_tokens", "output_tokens")
EPOCH, MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
SHIPPED_TRACE = Path(__file__).parent / "traces" / "synthetic.jsonl"  # synthetic_trace(500, seed=0)
LONGEST_ROW = 1 << 16  # characters; a row with more is of no trace, and may never end


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace; its prompt and output have at least 1 token."""

    arrival_us: float
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int = 0  # all prompts begin with the same, as far as this says and they go


def read_trace(path: str | Path) -> list[TraceRequest]:
    """Read a trace in either format.

    Raises:
        OSError: the file cannot be opened.
        ValueError: a bad row, a bad header, or no request at all.
    """
    requests: list[TraceRequest] = []
    values_of: Callable[[str], list[object]] | None = None
    fields, start_us = JSON_FIELDS, 0.0
    # A byte that is not UTF-8 spoils its own row, not the file; utf-8-sig drops Excel's mark.
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_ROW), ""), start=1):
            if line.isspace():
                continue
            try:
                if len(line) == LONGEST_ROW:
                    raise ValueError(f"{LONGEST_ROW:,} characters or more")
                if values_of is None:
                    values_of = _json_values
                    if not line.lstrip().startswith("{"):
                        fields, values_of = CSV_COLUMNS, _csv_values(line)
                        continue
                time, prompt, output = values_of(line)
                arrival_us = _us(fields[0], time) - start_us
                if not requests:
                    start_us, arrival_us = arrival_us, 0.0
                elif arrival_us < requests[-1].arrival_us:
                    raise ValueError("arrives before the row above it: sort the trace by time")
                tokens = _count(fields[1], prompt), _count(fields[2], output)
                requests.append(TraceRequest(arrival_us, *tokens))
            except ValueError as error:
                raise ValueError(f"{path} row {number}: {error}") from None
    if not requests:
        raise ValueError(
            f"{path}: no request in it; expected {','.join(CSV_COLUMNS)} or JSON lines"
        )
    return requests


def _csv_values(header: str) -> Callable[[str], list[object]]:
    """How to find the values of CSV_COLUMNS in a row under this header."""
    names = [name.strip() for name in header.split(",")]
    if missing := [name for name in CSV_COLUMNS if name not in names]:
        raise ValueError(
            f"no column {', '.join(missing)} in the header {in_short(header.strip())}; "
            f"expected {','.join(CSV_COLUMNS)}"
        )
    at = [names.index(name) for name in CSV_COLUMNS]

    def values(line: str) -> list[object]:
        fields = line.split(",")
        if len(fields) != len(names):
            raise ValueError(f"{len(fields)} fields, and the header has {len(names)}")
        texts = [fields[i].strip() for i in at]
        return [int(text) if text.isdecimal() else text for text in texts]

    return values


def _json_values(line: str) -> list[object]:
    row = parse_json(line, "the line")
    if not isinstance(row, dict):
        raise ValueError(f"expected an object, got {in_short(row)}")
    if missing := [name for name in JSON_FIELDS if name not in row]:
        raise ValueError(f"no field {', '.join(missing)}")
    return [row[name] for name in JSON_FIELDS]


def _us(field: str, value: object) -> float:
    """An arrival: a number of seconds, or a date and time, which without a zone is UTC."""
    if isinstance(value, int | float) and 0 <= value < 1e12:
        # To the nanosecond, so that 0.3 s is 300,000 us and not a little less.
        return round(value * 1e6, 3)
    try:
        time = datetime.fromisoformat(str(value))  # digits beyond the sixth are dropped
    except ValueError:
        raise ValueError(
            f"{field} {in_short(value)} is no time: expected seconds from 0 on, or a date and time "
            "like 2023-11-16 18:15:46.680590"
        ) from None
    return (time.replace(tzinfo=time.tzinfo or UTC) - EPOCH) // MICROSECOND


def _count(field: str, value: object) -> int:
    if type(value) is not int or not 0 < value < 10**15:
        raise ValueError(f"{field} {in_short(value)} is not a whole number of at least 1")
    return value


def synthetic_trace(
    num_requests: int,
    seed: int,
    *,
    requests_per_s: float = 5.0,
    median_prompt_tokens: int = 600,
    median_output_tokens: int = 150,
) -> Iterator[TraceRequest]:
    """Random requests, one at a time; the same arguments give the same requests.

    Arrivals are a Poisson process (independent users). Lengths are log-normal, with many short ones
    and a long tail: prompts with sigma 1, cut at 8192, outputs with sigma 0.8, cut at 1000. All
    randomness comes from `random.random`, which Python promises not to change.
    """
    rng, normal, arrival_us = random.Random(seed), NormalDist(), 0.0

    def length(median: int, sigma: float, most: int) -> int:
        tokens = median * math.exp(sigma * normal.inv_cdf(rng.random() or 0.5))
        return min(most, max(1, round(tokens)))

    for _ in range(num_requests):
        yield TraceRequest(
            round(arrival_us),
            length(median_prompt_tokens, 1.0, 8192),
            length(median_output_tokens, 0.8, 1000),
        )
        arrival_us += -math.log(1 - rng.random()) / requests_per_s * 1e6


def with_shared_prefix(
    requests: Iterable[TraceRequest], tokens: int, share: float, seed: int = 0
) -> Iterator[TraceRequest]:
    """The requests, of which about `share` (0 to 1), chosen at random, begin with the same `tokens`
    tokens, as with one system prompt. A shorter prompt is a beginning of it. Lengths stay.

    A trace says how long a prompt was and not what stood in it, so the share is an assumption.
    """
    if tokens == 0:
        yield from requests
        return
    rng = random.Random(seed)
    for request in requests:
        yield replace(request, shared_tokens=tokens if rng.random() < share else 0)
