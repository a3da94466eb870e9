"""Traces of requests: when each arrived, how long its prompt was, how many tokens it got.

In:  a file in one of two formats, told apart by their first character.
     CSV as the Azure LLM inference traces have it (https://github.com/Azure/AzurePublicDataset):
         TIMESTAMP,ContextTokens,GeneratedTokens
         2023-11-16 18:15:46.6805900,374,44
     JSON lines, one request a line:
         {"arrival_s": 0.25, "prompt_tokens": 374, "output_tokens": 44}
Out: a Trace: the requests in order of arrival, the first of them at time 0.

A row that cannot be read is an error that names file, row and field; with `skip_bad_rows` it is
counted and left out. Rows are numbered as in an editor: the header is row 1. A row of more than
`LONGEST_ROW` characters is refused in either case: what has none of 60,000 is no trace.
"""

import json
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from operator import itemgetter
from pathlib import Path
from statistics import NormalDist
from typing import TextIO

from mini_engine.serving.packed_requests import PackedRequests
from mini_engine.serving.packed_requests import TraceRequest as TraceRequest

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
EPOCH = datetime(1970, 1, 1)
SHIPPED_TRACE = Path(__file__).parent / "traces" / "synthetic.jsonl"  # synthetic_trace(500, seed=0)
FIELDS = ("arrival_s", "prompt_tokens", "output_tokens")
STANDARD_INPUT = "-"
LONGEST_ROW = 1 << 16  # characters, its end included
ROWS_A_WORD = 1 << 14  # between two calls of `progress`


@dataclass(frozen=True)
class Trace:
    """A file's requests, and what could not be read of it."""

    requests: PackedRequests
    num_skipped: int = 0
    first_skipped: str | None = None  # what was wrong with the first skipped row


def trace_name(path: str | Path) -> str:
    """What to call it to people."""
    return "standard input" if str(path) == STANDARD_INPUT else str(path)


def read_trace(
    path: str | Path, *, skip_bad_rows: bool = False, progress: Callable[[int], None] | None = None
) -> Trace:
    """Read a trace in either format, from a file, or from standard input if `path` is "-".

    `progress` is called now and then with the number of characters read so far.

    Raises:
        OSError: the file cannot be opened.
        ValueError: a bad row (unless skipped), a bad header, an endless row, or no request at all.
    """
    requests, name, characters = PackedRequests(), trace_name(path), 0
    num_skipped, first_skipped, before_us = 0, None, -math.inf
    # A byte that is not UTF-8 spoils its own row, not the file; utf-8-sig drops Excel's mark.
    piped = str(path) == STANDARD_INPUT
    with open(
        0 if piped else path, encoding="utf-8-sig", errors="replace", closefd=not piped
    ) as file:
        parse, rows = _choose_format(enumerate(_lines(file, name), start=1), name)
        for number, line in rows:
            characters += len(line)
            if progress and number % ROWS_A_WORD == 0:
                progress(characters)
            if line.isspace():
                continue
            try:
                request = parse(line)
                if request[0] < before_us:
                    raise ValueError("arrives before the row above it: sort the trace by time")
            except ValueError as error:
                fault = f"{name} row {number}: {error}"
                if not skip_bad_rows:
                    raise ValueError(fault) from None
                num_skipped += 1
                first_skipped = first_skipped or fault
            else:
                requests.append(*request)
                before_us = request[0]
    if not requests:
        raise ValueError(f"{name}: no request in it; expected {','.join(COLUMNS)} or JSON lines")
    requests.start_at_zero()
    return Trace(requests, num_skipped, first_skipped)


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
    rng = random.Random(seed)
    normal = NormalDist()
    arrival_us = 0.0

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


_FIELDS_OF = itemgetter(*FIELDS)
_NO_COUNT = "is not a whole number of at least 1"

Row = tuple[int, str]
Parsed = tuple[float, int, int]  # arrival in µs, tokens of the prompt, tokens of the output


def _lines(file: TextIO, name: str) -> Iterator[str]:
    """All of them, with their ends. ValueError for one that does not end in time."""
    for number, line in enumerate(iter(lambda: file.readline(LONGEST_ROW), ""), start=1):
        if len(line) == LONGEST_ROW and line[-1] != "\n":
            raise ValueError(
                f"{name} row {number} has more than {LONGEST_ROW:,} characters: expected a request "
                f"a line, {','.join(COLUMNS)} or JSON"
            )
        yield line


def _choose_format(rows: Iterator[Row], path: str) -> tuple[Callable[[str], Parsed], Iterator[Row]]:
    """The parser for the remaining rows, and these rows."""
    for number, line in rows:
        if "\0" in line:
            raise ValueError(
                f"{path}: holds bytes of 0, so it is UTF-16 or no text; save it as UTF-8 "
                f"(with {','.join(COLUMNS)} or JSON lines in it)"
            )
        if line.strip().startswith("{"):
            return _parse_json, chain([(number, line)], rows)
        if line.strip():
            return _csv_parser(line, f"{path} row {number}"), rows
    raise ValueError(f"{path}: the file is empty; expected {','.join(COLUMNS)} or JSON lines")


def _csv_parser(header: str, where: str) -> Callable[[str], Parsed]:
    names = [name.strip() for name in header.split(",")]
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise ValueError(
            f"{where}: no column {', '.join(missing)} in the header {header.strip()[:80]!r}; "
            f"expected {','.join(COLUMNS)}"
        )
    if twice := [name for name in COLUMNS if names.count(name) > 1]:
        raise ValueError(f"{where}: two columns {', '.join(twice)}: leave out one of them")
    time_at, prompt_at, output_at = (names.index(name) for name in COLUMNS)

    def parse(line: str) -> Parsed:
        fields = line.split(",")
        if len(fields) != len(names):
            raise ValueError(f"{len(fields)} fields, and the header has {len(names)}")
        return (
            _timestamp_us(fields[time_at].strip()),
            _count("ContextTokens", fields[prompt_at].strip()),
            _count("GeneratedTokens", fields[output_at].strip()),
        )

    return parse


def _timestamp_us(text: str) -> int:
    """Microseconds since 1970; digits beyond the sixth are dropped. No zone means UTC."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"TIMESTAMP {text[:40]!r} is not a time; expected one like 2023-11-16 18:15:46.680590"
        ) from None
    if time.tzinfo:
        try:
            time = time.astimezone(UTC).replace(tzinfo=None)
        except OverflowError:
            raise ValueError(f"TIMESTAMP {text[:40]!r} is not of the years 1 to 9999 UTC") from None
    since = time - EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _count(field: str, text: str) -> int:
    count = int(text) if text.isdecimal() and len(text) <= 15 else 0
    if count < 1:
        raise ValueError(f"{field} {text[:40]!r} {_NO_COUNT}")
    return count


def _parse_json(line: str) -> Parsed:
    row = _json_object(line)
    try:
        arrival_s, prompt_tokens, output_tokens = _FIELDS_OF(row)
    except KeyError as error:
        raise ValueError(f"no field {error}") from None
    if type(arrival_s) not in (int, float) or not 0 <= arrival_s < 1e12:
        raise ValueError(f"arrival_s {arrival_s!r:.40} is not a number of seconds from 0 on")
    if type(prompt_tokens) is not int or not 0 < prompt_tokens < 10**15:
        raise ValueError(f"prompt_tokens {prompt_tokens!r:.40} {_NO_COUNT}")
    if type(output_tokens) is not int or not 0 < output_tokens < 10**15:
        raise ValueError(f"output_tokens {output_tokens!r:.40} {_NO_COUNT}")
    # To the nanosecond, so that 0.3 s is 300,000 us and not a little less.
    return round(arrival_s * 1e6, 3), prompt_tokens, output_tokens


def _json_object(line: str) -> dict[str, object]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"expected an object, got {line.strip()[:40]!r}")
    return row
