"""The log of an incident: what the device was asked to do, line by line, and what users were told.

    .venv/bin/python -m labs.lab06_debug_the_graph.incident a          the runner as it was given
    .venv/bin/python -m labs.lab06_debug_the_graph.incident a --mine   yours, as it stands now
    .venv/bin/python -m labs.lab06_debug_the_graph.incident            the beliefs to choose from

In: the letter of a runner. Out: numbered lines, the same at every run. Addresses are bytes from the
first one on. A line that runs on the GPU shows what the integers that it reads hold at that moment:

    kernel    launched by itself             copy      from the host into this address
    node      out of a graph                 upload    into memory taken for it, in this pool
    capture   records launches into a graph, whose new memory comes from this pool
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from labs.lab06_debug_the_graph.service import Service
from labs.runner import workspace
from labs.runner.cut.catalogue import lab_number
from mini_engine.sim.capture import CaptureError
from mini_engine.sim.device import Device
from mini_engine.sim.launch import Buffer, Node
from mini_engine.sim.memory import FIRST_ADDRESS
from mini_engine.step.cards import load_spec

BELIEFS = {  # by the alphabet, which says nothing about whose they are
    "a-warm-up-is-no-step": "A run whose answer nobody reads changes nothing.",
    "answers-keep": "An answer may be read as long as its buffer is not freed.",
    "capture-runs": "A capture runs what it records, once.",
    "freed-is-free": "Memory that was free when a graph was captured stays free for the graph.",
    "graphs-follow-names": "Wherever an input lies, the graph finds it by its name.",
    "numbers-stay-live": "A Python number in a launch is looked up again at every replay.",
    "one-launch-between-graphs": "Between two graphs there is one launch to remember.",
    "one-memory-is-too-little": "Graphs of different sizes must not share a pool.",
    "order-of-captures": "Small graphs may be captured first and lend large ones their memory.",
    "padded-rows-rest": "A row that nobody asked for does nothing, so it may hold anything.",
    "reading-does-not-wait": "The host may read a buffer before the GPU has written it.",
    "sizes-may-be-chosen": "Which sizes get a graph is for the runner to choose.",
}


class LoggedDevice(Device):
    """A device that writes a line for each thing it does."""

    def __init__(self) -> None:
        super().__init__(load_spec("h200"), memory_bytes=2**26, record=True)
        self.log: list[str] = []
        self.category = "kernel"
        self.recorded: list[str] = []

    def note(self, what: str, said: str) -> None:
        self.log.append(f"{what:8} {said}")

    def upload(self, array: np.ndarray) -> Buffer:
        buffer = self.empty(array.shape, array.dtype.str)
        self.note("upload", f"{buffer.nbytes} bytes to {place(buffer)}, pool {buffer.block.pool}")
        super().copy_batch([(buffer, array)])
        return buffer

    def copy_batch(self, copies: Sequence[tuple[Buffer, np.ndarray]]) -> None:
        for target, source in copies:
            array = np.asarray(source)
            rows = array.reshape(len(array), -1)[:, 0].tolist()
            self.note("copy", f"to {place(target)}, row by row: {short(rows)}")
        super().copy_batch(copies)

    def submit(self, node: Node) -> None:
        if self.recorder:
            self.recorded.append(node.label)
        super().submit(node)

    def run_graph(self, nodes: Sequence[Node], name: str) -> None:
        self.note("replay", f"{name}")
        self.category = "node"
        super().run_graph(nodes, name)
        self.category = "kernel"

    def _execute(self, node: Node) -> None:
        touched = [place(b) + contents(b) for b in node.buffers]
        self.note(self.category, f"{node.label}({', '.join(touched)})")
        super()._execute(node)

    def capture(self, pool: int | None = None, name: str = "graph") -> Any:
        return self._noted(super().capture(pool, name), name, pool)

    def capture_breakable(self, break_on: Any, pool: int | None = None, name: str = "graph") -> Any:
        return self._noted(super().capture_breakable(break_on, pool, name), name, pool)

    @contextmanager
    def _noted(self, capture: Any, name: str, pool: int | None) -> Iterator[Any]:
        self.recorded = []
        with capture as graph:
            yield graph
        recorded = f"{name}, pool {pool}: " + " ".join(self.recorded)
        self.note("capture", recorded)


def place(buffer: Buffer) -> str:
    """An address, short."""
    return f"@{buffer.address - FIRST_ADDRESS:x}"


def contents(buffer: Buffer) -> str:
    """What an input of integers holds now, such as the slots; nothing for numbers."""
    return f"={short(buffer.array.tolist())}" if buffer.dtype.kind in "iu" else ""


def short(values: Sequence[float] | Mapping[int, float]) -> str:
    """Up to eight numbers, or the first three of more and how many there are."""
    shown: object = values
    if len(values) <= 8:
        return str(shown)
    first = dict(list(values.items())[:3]) if isinstance(values, Mapping) else list(values[:3])
    return f"{str(first)[:-1]}, …{str(first)[-1]} of {len(values)}"


class LoggedService(Service):
    """A service that writes down who said what, and the answers beside the right ones."""

    def __init__(self, graphs: ModuleType, sizes: Sequence[int], **more: Any) -> None:
        self.device_log = LoggedDevice()
        self.device_log.note("start", f"sizes {list(sizes)}" + _named(more))
        super().__init__(graphs, sizes, device=self.device_log, **more)

    def speak(
        self, said: Mapping[int, float], kind: str = "float32", *, eager: bool = False
    ) -> None:
        """A step, or the error that ends it."""
        words = f"{short(said)}, as {kind}"
        self.device_log.note("step", words + (", without a graph" if eager else ""))
        right = self.expected(said)
        try:
            answers = self.eager_step(said) if eager else self.step(said, kind)
        except (StopIteration, CaptureError) as error:
            self.device_log.note("error", f"{type(error).__name__}: {error}".rstrip(": "))
            return
        self.device_log.note("answers", f"{short(answers)}; right: {short(right)}")


def _named(more: Mapping[str, Any]) -> str:
    return "".join(f", {name} {value}" for name, value in more.items())


def incident_a(graphs: ModuleType) -> list[str]:
    """A client sends whole numbers, and others speak after it."""
    service = LoggedService(graphs, (2,))
    service.speak({1: 3, 2: 4})
    service.speak({1: 5, 3: 6}, "int64")
    service.speak({1: 7, 2: 8})
    return service.device_log.log


def incident_b(graphs: ModuleType) -> list[str]:
    """A rush hour of four, then three others, then the four again."""
    service = LoggedService(graphs, (4,))
    service.speak({1: 1, 2: 2, 3: 3, 4: 4})
    service.speak({5: 5, 6: 6, 7: 7})
    service.speak({1: 1, 2: 2, 3: 3, 4: 4})
    return service.device_log.log


def incident_c(graphs: ModuleType) -> list[str]:
    """Sixteen users, then one more."""
    service = LoggedService(graphs, (4, 16, 20))
    service.speak(dict.fromkeys(range(1, 17), 1))
    service.speak(dict.fromkeys(range(1, 18), 1))
    return service.device_log.log


def incident_d(graphs: ModuleType) -> list[str]:
    """People talk; a capture; they go on talking."""
    service = LoggedService(graphs, (2,), capture=False)
    service.speak({1: 4, 2: 8}, eager=True)
    service.runner.capture()
    service.speak({1: 1, 2: 1})
    return service.device_log.log


def incident_e(graphs: ModuleType) -> list[str]:
    """A model that writes its cache in an op of its own, and runs it live beside the reading."""
    service = LoggedService(graphs, (2,), live=("remember", "recall"))
    service.speak({1: 4, 2: 5})
    service.speak({1: 1})
    return service.device_log.log


def incident_f(graphs: ModuleType) -> list[str]:
    """An adapter is loaded after the start, a step runs, the adapter is read back."""
    service = LoggedService(graphs, (8,))
    device = service.device_log
    weights = np.arange(32, dtype=np.float32).reshape(8, 4)
    adapters = [device.upload(weights) for _ in range(3)]
    service.speak({1: 1, 2: 2})
    for adapter in adapters:
        intact = bool((device.read(adapter) == weights).all())
        device.note("adapter", f"{place(adapter)} is {'as loaded' if intact else 'nonsense'}")
    return device.log


INCIDENTS: dict[str, Callable[[ModuleType], list[str]]] = {
    "a": incident_a, "b": incident_b, "c": incident_c,
    "d": incident_d, "e": incident_e, "f": incident_f,
}  # fmt: skip


def loaded(text: str, name: str) -> ModuleType:
    """A runner's file as a module of its own."""
    module = sys.modules[name] = ModuleType(name)
    exec(compile(text, f"{name}.py", "exec"), vars(module))
    return module


def main(words: Sequence[str] | None = None) -> None:
    """Print the log of one incident."""
    parser = argparse.ArgumentParser(description="the log of an incident, line by line")
    parser.add_argument("runner", nargs="?", choices=sorted(INCIDENTS))
    parser.add_argument("--mine", action="store_true", help="of your file, as it stands now")
    args = parser.parse_args(words)
    if args.runner is None:
        print("What did the author believe?")
        print("\n".join(f"  {id:26} {belief}" for id, belief in BELIEFS.items()))
        return
    lab, file = lab_number("6"), f"runner_{args.runner}.py"
    text = lab.to_mend()[file]
    if args.mine:
        workspace.refuse_unready(lab, workspace.load_progress())
        text = workspace.my_files(lab)[file].read_text(encoding="utf-8")
    log = INCIDENTS[args.runner](loaded(text, f"incident_{args.runner}"))
    lines = [f"{number:3}  {line}" for number, line in enumerate(log, start=1)]
    if not args.mine:
        lines += [
            "",
            "What did the author believe, and which is the first line that a right runner",
        ]
        lines += [
            "would not have caused? Write both into `diagnosis` of your file. Without a letter"
        ]
        lines += ["this program lists the beliefs."]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
