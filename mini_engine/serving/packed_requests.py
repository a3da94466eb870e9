"""The requests of a long trace, at 24 bytes each.

In:  arrival, prompt and output tokens, one request at a time, in order of arrival.
Out: a sequence of `TraceRequest`, each of them made when it is asked for.

A list of objects takes about 200 bytes a request, 2 GB for ten million of them.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace; its prompt and output have at least 1 token."""

    arrival_us: float
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int = 0  # all prompts begin with the same, as far as this says and they go


class PackedRequests(Sequence[TraceRequest]):
    """Equal to any other sequence of the same requests. A slice is a tuple."""

    __hash__ = None  # type: ignore[assignment]  # it grows

    def __init__(self) -> None:
        self._arrival_us = array("d")
        self._prompt_tokens, self._output_tokens = array("q"), array("q")

    def append(self, arrival_us: float, prompt_tokens: int, output_tokens: int) -> None:
        """Add one at the end."""
        self._arrival_us.append(arrival_us)
        self._prompt_tokens.append(prompt_tokens)
        self._output_tokens.append(output_tokens)

    def start_at_zero(self) -> None:
        """Count time in µs from the first arrival on."""
        arrivals = self._arrival_us
        start_us = arrivals[0]
        for at, arrival_us in enumerate(arrivals):
            arrivals[at] = arrival_us - start_us

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts together."""
        return sum(self._prompt_tokens)

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
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(TraceRequest.__eq__, self, other))
