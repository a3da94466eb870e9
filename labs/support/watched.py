"""What kernels did in Triton's interpreter (`watching` takes it down), and the checks of it.

In:  programs with what they read and wrote, in order, and the tensors by name.
Out: nothing, or an AssertionError: one sentence that names the tensor.

No cache and no race exists in the interpreter, so what a GPU's caches and concurrent programs would
do must be seen from the addresses and the cache modifiers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from torch import Tensor

Addresses = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Event:
    """One thing that a program did. `kind`: release, wait, load, store or atomic."""

    kind: str
    addresses: Addresses  # of the lanes that are not masked
    past_l1: bool = False


@dataclass
class Program:
    """The programs of all launches stand in one list, in the order in which they ran."""

    index: tuple[int, int, int]
    events: list[Event] = field(default_factory=list)

    @property
    def above(self) -> list[Event]:
        """What came before the wait; all of it where there is none."""
        kinds = [event.kind for event in self.events]
        return self.events[: kinds.index("wait")] if "wait" in kinds else self.events

    @property
    def below(self) -> list[Event]:
        return self.events[len(self.above) :]


@dataclass(repr=False)
class Watch:
    """What programs did. The methods that check raise AssertionError."""

    tensors: dict[str, Tensor]
    programs: list[Program] = field(default_factory=list)
    rounded: list[str] = field(default_factory=list)  # of float32 operands of tl.dot, to what

    @property
    def events(self) -> list[Event]:
        return [event for program in self.programs for event in program.events]

    def elements(self, kind: str, name: str, events: list[Event] | None = None) -> list[int]:
        """The elements of a tensor that were loaded or stored, with repeats, in order."""
        tensor, found = self.tensors[name], list[int]()
        first, size = tensor.data_ptr(), tensor.element_size()
        for event in self.events if events is None else events:
            if event.kind == kind:
                at = (event.addresses - first) // size
                found += at[(at >= 0) & (at < tensor.numel())].tolist()
        return found

    # -- the two lines for dependent launch ---------------------------------------------------

    def releases_first_and_waits_once(self) -> None:
        """In every program the release comes before all loads and stores, and there is one wait."""
        for program in self.programs:
            did = [event.kind for event in program.events]
            begins = did[0] if did else "nothing at all"
            assert begins == "release", (
                f"pdl_release must come first: a program begins with {begins}"
            )
            for line in ("release", "wait"):
                times = did.count(line)
                assert times == 1, f"pdl_{line}(PDL) stands in a program once, not {times} times"

    def reads_and_writes_below_the_wait(self, *names: str) -> None:
        """What another kernel of the step writes or reads: no load and no store above the wait."""
        above = [event for program in self.programs for event in program.above]
        for name in names:
            loads, stores = (self.elements(kind, name, above) for kind in ("load", "store"))
            assert not loads, f"{name} is read above pdl_wait, while it may still be written"
            assert not stores, f"{name} is written above pdl_wait"

    def reads_above_the_wait(self, *names: str) -> None:
        """What nobody writes, and should be on its way early: no load below the wait."""
        below = [event for program in self.programs for event in program.below]
        for name in names:
            loads = self.elements("load", name, below)
            assert not loads, f"{name} is read below pdl_wait, where it could be on its way before"

    # -- how often, and where -----------------------------------------------------------------

    def read_once(self, *names: str, by_each_program: bool = False) -> None:
        """Each element is loaded once: in all, or by each program that loads any."""
        for name in names:
            size = self.tensors[name].numel()
            parts = [p.events for p in self.programs] if by_each_program else [self.events]
            each = "by a program" if by_each_program else "in all"
            for part in parts:
                times = np.bincount(self.elements("load", name, part), minlength=size)
                never, most = int((times == 0).sum()), int(times.max())
                assert most <= 1, f"an element of {name} is read {most} times {each}, not once"
                assert not never, f"{never} of {size} elements of {name} are not read {each}"

    def written_once(self, *names: str) -> None:
        for name in names:
            size = self.tensors[name].numel()
            times = np.bincount(self.elements("store", name), minlength=size)
            never, most = int((times == 0).sum()), int(times.max())
            assert most <= 1, f"an element of {name} is written {most} times, not once"
            assert not never, f"{never} of {size} elements of {name} are not written"

    def reaches(self, kind: str, name: str, tensor: Tensor, first: int, size: int) -> None:
        """Of a tensor that is larger than memory (`imagined`): elements first to first + size - 1,
        counted from where `tensor` begins, are loaded or stored."""
        found = {
            (int(at) - tensor.data_ptr()) // tensor.element_size()
            for event in self.events
            if event.kind == kind
            for at in event.addresses
        }
        missing = sorted(set(range(first, first + size)) - found)
        did = {"load": "read", "store": "written"}[kind]
        assert not missing, (
            f"element {missing[0] if missing else 0} of {name} is not {did}: "
            "an offset of more than 2**31 elements needs int64"
        )

    def products_keep_float32(self) -> None:
        """Tensor cores round float32 operands to 10 bits (TF32) unless one says otherwise."""
        rounded = sorted(set(self.rounded))
        assert not rounded, f'tl.dot of float32 rounds to {rounded[0]}: input_precision="ieee"'

    def nothing_outside(self) -> None:
        """No load and no store of an address that lies in none of the tensors."""
        for kind, did in (("load", "read"), ("store", "written"), ("atomic", "added to")):
            for event in self.events:
                if event.kind == kind:
                    beyond = int((~within(event.addresses, self.tensors)).sum())
                    where = f"beyond the ends of {', '.join(self.tensors)}"
                    assert not beyond, (
                        f"{beyond} elements {where} are {did} at once: is a mask missing?"
                    )

    def reads_past_l1(self, *names: str) -> None:
        """What a kernel of the step wrote is loaded with ".cg"; it may be old in the L1 cache."""
        for name in names:
            plain = [e for e in self.events if e.kind == "load" and not e.past_l1]
            missing = self.elements("load", name, plain)
            assert not missing, f'{name} was just written: load it with cache_modifier=".cg"'


def within(addresses: Addresses, tensors: dict[str, Tensor]) -> npt.NDArray[np.bool_]:
    """Which of the addresses lie in one of the tensors."""
    inside = np.zeros(addresses.shape, bool)
    for tensor in tensors.values():
        at = (addresses - tensor.data_ptr()) // tensor.element_size()
        inside |= (at >= 0) & (at < tensor.numel())
    return inside
