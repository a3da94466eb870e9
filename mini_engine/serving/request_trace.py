"""Traces of requests: when each arrived, how long its prompt was, how many tokens it got.

In:  a file in one of two formats, told apart by their first character.
     CSV as the Azure LLM inference traces have it (https://github.com/Azure/AzurePublicDataset):
         TIMESTAMP,ContextTokens,GeneratedTokens
         2023-11-16 18:15:46.6805900,374,44
     JSON lines, one request a line:
         {"arrival_s": 0.25, "prompt_tokens": 374, "output_tokens": 44}
Out: a Trace: the requests in order of arrival, the first of them at time 0.

A row that cannot be read is an error that names file, row and field. Rows are numbered as in an
editor: the header is row 1.
"""

import json
import math
import random
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import NormalDist
from typing import overload

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
EPOCH = datetime(1970, 1, 1)
SHIPPED_TRACE = Path(__file__).parent / "traces" / "synthetic.jsonl"  # synthetic_trace(500, seed=0)
STANDARD_INPUT = "-"
LONGEST_ROW = 1 << 16  # characters; more of them in a row are no trace, and may never end


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace; its prompt and output have at least 1 token."""

    arrival_us: float
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int = 0  # all prompts begin with the same, as far as this says and they go


class PackedRequests(Sequence[TraceRequest]):
    """The requests of a trace, at 24 bytes each: as objects, ten million of them take 2 GB."""

    __hash__ = None  # type: ignore[assignment]  # it grows

    def __init__(self) -> None:
        self._arrival_us = array("d")
        self._prompt_tokens, self._output_tokens = array("q"), array("q")

    def append(self, arrival_us: float, prompt_tokens: int, output_tokens: int) -> None:
        """Add one at the end."""
        self._arrival_us.append(arrival_us)
        self._prompt_tokens.append(prompt_tokens)
        self._output_tokens.append(output_tokens)

    @property
    def lengths(self) -> Iterator[tuple[int, int]]:
        """Prompt and output tokens of each, without making the requests."""
        return zip(self._prompt_tokens, self._output_tokens, strict=True)

    def __len__(self) -> int:
        return len(self._arrival_us)

    @overload
    def __getitem__(self, at: int) -> TraceRequest: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[TraceRequest, ...]: ...
    def __getitem__(self, at: int | slice) -> TraceRequest | tuple[TraceRequest, ...]:
        if isinstance(at, slice):
            return tuple(self[i] for i in range(len(self))[at])
        return TraceRequest(self._arrival_us[at], self._prompt_tokens[at], self._output_tokens[at])

    def __iter__(self) -> Iterator[TraceRequest]:
        return map(TraceRequest, self._arrival_us, self._prompt_tokens, self._output_tokens)

    def __eq__(self, other: object) -> bool:
        """Equal to any sequence of the same requests."""
        return isinstance(other, Sequence) and tuple(self) == tuple(other)


@dataclass(frozen=True)
class Trace:
    """A file's requests."""

    requests: PackedRequests


def trace_name(path: str | Path) -> str:
    """What to call it to people."""
    return "standard input" if str(path) == STANDARD_INPUT else str(path)


def read_trace(path: str | Path) -> Trace:
    """Read a trace in either format, from a file, or from standard input if `path` is "-".

    Raises:
        OSError: the file cannot be opened.
        ValueError: a bad row, a bad header, or no request at all.
    """
    requests, name = PackedRequests(), trace_name(path)
    parse: Callable[[str], Parsed] | None = None
    start_us, before_us = math.nan, -math.inf
    piped = str(path) == STANDARD_INPUT
    # A byte that is not UTF-8 spoils its own row, not the file; utf-8-sig drops Excel's mark.
    with open(
        0 if piped else path, encoding="utf-8-sig", errors="replace", closefd=not piped
    ) as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_ROW), ""), start=1):
            if len(line) == LONGEST_ROW:
                raise ValueError(f"{name} row {number}: {LONGEST_ROW:,} characters or more")
            if line.isspace():
                continue
            if parse is None:
                if not line.lstrip().startswith("{"):
                    parse = _csv_parser(line, f"{name} row {number}")
                    continue
                parse = _parse_json
            try:
                arrival_us, prompt_tokens, output_tokens = parse(line)
                if arrival_us < before_us:
                    raise ValueError("arrives before the row above it: sort the trace by time")
            except ValueError as error:
                raise ValueError(f"{name} row {number}: {error}") from None
            if not requests:
                start_us = arrival_us
            requests.append(arrival_us - start_us, prompt_tokens, output_tokens)
            before_us = arrival_us
    if not requests:
        raise ValueError(f"{name}: no request in it; expected {','.join(COLUMNS)} or JSON lines")
    return Trace(requests)


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


Parsed = tuple[float, int, int]  # arrival in µs, tokens of the prompt, tokens of the output


def _csv_parser(header: str, where: str) -> Callable[[str], Parsed]:
    names = [name.strip() for name in header.split(",")]
    if missing := [name for name in COLUMNS if name not in names]:
        raise ValueError(
            f"{where}: no column {', '.join(missing)} in the header {header.strip()[:80]!r}; "
            f"expected {','.join(COLUMNS)}"
        )
    time_at, prompt_at, output_at = (names.index(name) for name in COLUMNS)

    def parse(line: str) -> Parsed:
        fields = line.split(",")
        if len(fields) != len(names):
            raise ValueError(f"{len(fields)} fields, and the header has {len(names)}")
        prompt, output = fields[prompt_at].strip(), fields[output_at].strip()
        return (
            _timestamp_us(fields[time_at].strip()),
            _count("ContextTokens", int(prompt) if prompt.isdecimal() else prompt),
            _count("GeneratedTokens", int(output) if output.isdecimal() else output),
        )

    return parse


def _timestamp_us(text: str) -> int:
    """Microseconds since 1970; digits beyond the sixth are dropped. No zone means UTC."""
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo:
            time = time.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise ValueError(
            f"TIMESTAMP {text[:40]!r} is not a time; expected one like 2023-11-16 18:15:46.680590"
        ) from None
    since = time - EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _count(field: str, value: object) -> int:
    if type(value) is not int or not 0 < value < 10**15:
        raise ValueError(f"{field} {value!r:.40} is not a whole number of at least 1")
    return value


def _parse_json(line: str) -> Parsed:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"expected an object, got {line.strip()[:40]!r}")
    for name in ("arrival_s", "prompt_tokens", "output_tokens"):
        if name not in row:
            raise ValueError(f"no field {name!r}")
    arrival_s = row["arrival_s"]
    if type(arrival_s) not in (int, float) or not 0 <= arrival_s < 1e12:
        raise ValueError(f"arrival_s {arrival_s!r:.40} is not a number of seconds from 0 on")
    # To the nanosecond, so that 0.3 s is 300,000 us and not a little less.
    return (
        round(arrival_s * 1e6, 3),
        _count("prompt_tokens", row["prompt_tokens"]),
        _count("output_tokens", row["output_tokens"]),
    )
