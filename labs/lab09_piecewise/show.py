"""Your pieces: a step cut in two ways, cut while capturing, and a text that runs through them."""

import numpy as np

from mini_engine.dispatch.pieces import split_pieces
from mini_engine.engine.generation import SHIPPED
from mini_engine.sim import kernels as k
from mini_engine.sim.capture import Graph
from mini_engine.sim.device import Device
from mini_engine.sim.generate import generate, open_checkpoint
from mini_engine.step.cards import load_spec

STEP = ["embed", "aten::empty", *["qkv", "kv_write", "aten::empty", "attention", "mlp"] * 2]
PROMPTS = ["Return the", "Raise an"]


def cut_from_a_list() -> None:
    for splitting in ({"attention"}, {"attention", "kv_write"}):
        print(f"\nlisted, then cut at {' and '.join(sorted(splitting))}:")
        for piece in split_pieces(STEP, splitting):
            print(f"  {piece.id} {'live ' if piece.splitting else 'graph'} {' '.join(piece.ops)}")


def cut_while_capturing() -> None:
    device = Device(load_spec("h200"), memory_bytes=2**22)
    x = device.upload(np.ones(4, np.float32))
    labels = [op for op in STEP if op != "aten::empty"]  # allocations launch nothing
    with device.capture_breakable({"attention", "kv_write"}) as whole:
        for label in labels:
            device.launch(k.scale, x, x, by=1.0, label=label)
    print("\ncut while capturing ([…] is a graph):")
    row = [
        "[" + " ".join(node.label for node in launch.nodes) + "]"
        if isinstance(launch, Graph)
        else launch.label
        for launch in whole.launches
    ]
    print(" ", " ".join(part for part in row if part != "[]"))


def a_text() -> None:
    checkpoint, spec = open_checkpoint(SHIPPED), load_spec("h200")
    for mode in ("NONE", "PIECEWISE"):
        made = generate(checkpoint, spec, PROMPTS, mode, max_new_tokens=16)
        counted = made.counters
        print(f"\n{mode}: {counted.kernels} kernels in {counted.launches} launches")
        for prompt, text in zip(PROMPTS, made.texts, strict=True):
            print(f"  {prompt}{text}".rstrip())


def main() -> None:
    print("one step of two layers")
    cut_from_a_list()
    cut_while_capturing()
    a_text()


if __name__ == "__main__":
    main()
