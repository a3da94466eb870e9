"""One token on two lanes: launched from Python piece by piece, then out of your recording. And a
small recording that is fed with three numbers."""

import numpy as np

from labs.lab00_one_capture.one_step import feed, launches_of_a_token, played, record
from labs.support.lanes import LEGEND, drawn, length_us
from mini_engine.sim import kernels as k
from mini_engine.sim.device import Device
from mini_engine.step.cards import load_spec


def main() -> None:
    device = Device(load_spec("h200"), compute=False, record=True)
    model, choice = launches_of_a_token(device)
    print("One token of Qwen3-0.6B for one reader, by vLLM on an H200 (predicted)")
    print(f"{LEGEND}\n")
    before = device.counters.copy()
    events = played(device, model, choice)
    eager_us = length_us(events)
    eager = device.counters.since(before)
    print(f"{eager.launches} launches from Python")
    print(drawn(events, eager_us))
    try:
        graph = record(device, model)
    except NotImplementedError:
        print("\nas one recording: that is what you write now")
        return
    before = device.counters.copy()
    events = played(device, graph.replay, choice)
    graph_us = length_us(events)
    played_once = device.counters.since(before)
    nodes = len(graph.nodes)
    print(f"\n{played_once.launches} launches, one of them your graph of {nodes} kernels, "
          "the others choose the token")  # fmt: skip
    print(drawn(events, eager_us))
    if played_once.kernels != eager.kernels:
        print(f"\nno token: {played_once.kernels} kernels ran, and it takes {eager.kernels}")
        return
    print(f"\nQwen3-0.6B: {1e6 / eager_us:,.0f} tokens a second before, {1e6 / graph_us:,.0f} now: "
          f"{eager_us / graph_us:.1f} times as many, from the same kernels")  # fmt: skip
    fed(Device(load_spec("h200"), memory_bytes=64 * 2**20), (3, 5, 8))


def fed(device: Device, numbers: tuple[int, ...]) -> None:
    """y = 2x, recorded with the first of the numbers in x; then each of them fed to the graph."""
    x, y = device.upload(np.full(1, numbers[0], np.float32)), device.empty((1,))
    graph = record(device, lambda: device.launch(k.scale, y, x, by=2.0))
    print(f"\nA step y = 2x, recorded with {numbers[0]} in x and played for {numbers}")
    for way in ("each number in a new place:", "by your feed:"):
        told = []
        for number in numbers:
            array = np.full(1, number, np.float32)
            if way == "by your feed:":
                feed(device, graph, x, array)
            else:  # a place that the recording does not know
                device.upload(array)
                graph.replay()
            told.append(f"{device.read(y)[0]:.0f}")
        print(f"  {way:28} y = {', '.join(told)}")


if __name__ == "__main__":
    main()
