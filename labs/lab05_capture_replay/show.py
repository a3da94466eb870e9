"""What your runner does on two lanes: captures of a small ladder, three steps, and a text."""

from collections.abc import Sequence

import numpy as np

from mini_engine.engine.generation import SHIPPED
from mini_engine.sim import kernels as k
from mini_engine.sim.device import Device
from mini_engine.sim.generate import generate, open_checkpoint
from mini_engine.sim.graphs import GraphRunner, StaticInputs
from mini_engine.sim.launch import Buffer, kernel
from mini_engine.sim.trace import CPU, GPU, TraceEvent
from mini_engine.step.cards import load_spec

WIDTH = 4


@kernel()
def add_to_sums(sums: np.ndarray, slots: np.ndarray, x: np.ndarray) -> None:
    sums[slots] += x


def main() -> None:
    device = Device(load_spec("h200"), memory_bytes=64 * 2**20, record=True)
    sums = device.upload(np.zeros((9, WIDTH), np.float32))
    shapes = {"x": ((8, WIDTH), "float32"), "slots": ((8,), "int32")}
    inputs = StaticInputs(device, shapes)

    def forward(rows: int) -> Buffer:
        """y = 2x, after x was added to the sum of its slot. Slot 0 is nobody's."""
        view, out = inputs.view(rows), device.empty((rows, WIDTH))
        device.launch(add_to_sums, sums, view["slots"], view["x"])
        device.launch(k.scale, out, view["x"], by=2.0)
        return out

    graph, _ = GraphRunner(device, forward, inputs, [1])._record(1)
    print("recorded:", *[node.label for node in graph.nodes], end="; ")
    print(f"kernels that ran: {device.counters.kernels}\n")
    runner = GraphRunner(device, forward, inputs, [1, 2, 4, 8])
    report = runner.capture()
    for one in report.rungs:
        print(f"rung {one.rung}: {one.graphs} graph, pool + {one.pool_growth_bytes:,} bytes")
    print(f"the sums after all captures: {device.read(sums)[:, 0]}")
    print("batches of 1 to 8 rows run at the rungs", *map(runner.rung_for, range(1, 9)), end="\n\n")
    print("a character for each µs: copy, launch, wait, the kernels add and scale; · nothing\n")
    for slots in ([1, 2, 3, 4, 5], [3], [1, 2, 3]):
        x = np.repeat(np.array(slots, np.float32)[:, None], WIDTH, axis=1)
        batch = {"x": x, "slots": np.array(slots, np.int32)}
        before = device.counters.copy()
        seen, began_us = len(device.timeline), device.cpu_us
        out = runner.run(len(slots), batch)
        did = device.counters.since(before)
        print(f"a batch of {len(slots)} at rung {runner.rung_for(len(slots))}: {did.launches} "
              f"launches, {did.graphs} graph, {did.kernels} kernels; "
              f"y {device.read(out)[:, 0]}")  # fmt: skip
        for lane in (CPU, GPU):
            print(f"   {lane:3} {drawn(device.timeline[seen:], lane, began_us)}")
    print(f"the sums of slots 0 to 8: {device.read(sums)[:, 0]}")

    tiny, prompts = open_checkpoint(SHIPPED), ["Return the", "def add("]
    eager, graphs = (
        generate(tiny, load_spec("h200"), prompts, mode, max_new_tokens=16)
        for mode in ("NONE", "FULL")
    )
    print(f"\nthe small model writes two texts with {eager.counters.launches:,} launches eagerly, "
          f"with {graphs.counters.launches} in {graphs.report.graphs} graphs:")  # fmt: skip
    for prompt, text, plain in zip(prompts, graphs.texts, eager.texts, strict=True):
        print(f"   {prompt!r} goes on with {text!r}, {'as' if text == plain else 'NOT as'} eagerly")


def drawn(events: Sequence[TraceEvent], lane: str, began_us: float) -> str:
    """A character for each µs: the first letter of what ran last in it, w for any wait, a point
    for nothing."""
    cells: dict[int, str] = {}
    for event in events:
        if event.lane == lane:
            ran = range(int(event.start_us - began_us), int(event.end_us - began_us))
            cells |= dict.fromkeys(ran, "w" if event.category == "wait" else event.name[0])
    return "".join(cells.get(cell, "·") for cell in range(max(cells, default=-1) + 1))


if __name__ == "__main__":
    main()
