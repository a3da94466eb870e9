"""Traces of requests: when each arrived, how long its prompt was, how many tokens it got.

In:  a file in one of two formats, told apart by their first character.
     CSV as the Azure LLM inference traces have it (https://github.com/Azure/AzurePublicDataset):
         TIMESTAMP,ContextTokens,GeneratedTokens
         2023-11-16 18:15:46.6805900,374,44
     JSON lines, one request a line:
         {"arrival_s": 0.25, "prompt_tokens": 374, "output_tokens": 44}
Out: a Trace: the requests in order of arrival, the first of them at time 0.

A row that cannot be read is an error that names file, row and field; with `skip_bad_rows` it is
counted and left out. Rows are numbered as in an editor: the header is row 1.
"""

import json
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from statistics import NormalDist

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SHIPPED_TRACE = Path(__file__).parent / "traces" / "synthetic.jsonl"  # synthetic_trace(500, seed=0)


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace; its prompt and output have at least 1 token."""

    arrival_us: float
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int = 0  # all prompts begin with the same, as far as this says and they go


@dataclass(frozen=True)
class Trace:
    """A file's requests, and what could not be read of it."""

    requests: tuple[TraceRequest, ...]
    num_skipped: int = 0
    first_skipped: str | None = None  # what was wrong with the first skipped row


def read_trace(path: str | Path, *, skip_bad_rows: bool = False) -> Trace:
    """Read a trace in either format.

    Raises:
        OSError: the file cannot be opened.
        ValueError: a bad row (unless skipped), a bad header, or no request at all.
    """
    requests: list[TraceRequest] = []
    num_skipped, first_skipped = 0, None
    # A byte that is not UTF-8 spoils its own row, not the file; utf-8-sig drops Excel's mark.
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        parse, rows = _choose_format(enumerate(file, start=1), str(path))
        for number, line in rows:
            if not line.strip():
                continue
            try:
                request = parse(line)
                if requests and request.arrival_us < requests[-1].arrival_us:
                    raise ValueError("arrives before the row above it: sort the trace by time")
                requests.append(request)
            except ValueError as error:
                fault = f"{path} row {number}: {error}"
                if not skip_bad_rows:
                    raise ValueError(fault) from None
                num_skipped += 1
                first_skipped = first_skipped or fault
    if not requests:
        raise ValueError(f"{path}: no request in it; expected {','.join(COLUMNS)} or JSON lines")
    start_us = requests[0].arrival_us
    from_zero = tuple(replace(r, arrival_us=r.arrival_us - start_us) for r in requests)
    return Trace(from_zero, num_skipped, first_skipped)


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
    rng = random.Random(seed)
    for request in requests:
        yield replace(request, shared_tokens=tokens if rng.random() < share else 0)


Row = tuple[int, str]


def _choose_format(
    rows: Iterator[Row], path: str
) -> tuple[Callable[[str], TraceRequest], Iterator[Row]]:
    """The parser for the remaining rows, and these rows."""
    for number, line in rows:
        if line.strip().startswith("{"):
            return _parse_json, chain([(number, line)], rows)
        if line.strip():
            return _csv_parser(line, f"{path} row {number}"), rows
    raise ValueError(f"{path}: the file is empty; expected {','.join(COLUMNS)} or JSON lines")


def _csv_parser(header: str, where: str) -> Callable[[str], TraceRequest]:
    names = [name.strip() for name in header.split(",")]
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise ValueError(
            f"{where}: no column {', '.join(missing)} in the header {header.strip()[:80]!r}; "
            f"expected {','.join(COLUMNS)}"
        )
    time_at, prompt_at, output_at = (names.index(name) for name in COLUMNS)

    def parse(line: str) -> TraceRequest:
        fields = line.split(",")
        if len(fields) != len(names):
            raise ValueError(f"{len(fields)} fields, and the header has {len(names)}")
        return TraceRequest(
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
    since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - EPOCH
    return since // timedelta(microseconds=1)


def _count(field: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 15 or int(text) < 1:
        raise ValueError(f"{field} {text[:40]!r} is not a whole number of at least 1")
    return int(text)


def _parse_json(line: str) -> TraceRequest:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"expected an object, got {line.strip()[:40]!r}")
    for field in ("arrival_s", "prompt_tokens", "output_tokens"):
        if field not in row:
            raise ValueError(f"no field {field!r}")
    arrival_s = row["arrival_s"]
    if type(arrival_s) not in (int, float) or not 0 <= arrival_s < 1e12:
        raise ValueError(f"arrival_s {arrival_s!r} is not a number of seconds from 0 on")
    prompt_tokens, output_tokens = row["prompt_tokens"], row["output_tokens"]
    for field, value in (("prompt_tokens", prompt_tokens), ("output_tokens", output_tokens)):
        if type(value) is not int or not 1 <= value < 10**15:
            raise ValueError(f"{field} {value!r} is not a whole number of at least 1")
    # To the nanosecond, so that 0.3 s is 300,000 us and not a little less.
    return TraceRequest(round(arrival_s * 1e6, 3), prompt_tokens, output_tokens)
