"""What your attention keeps in memory, how the sums grow tile by tile, and the text it writes."""

import tracemalloc
from collections.abc import Callable
from functools import partial

import numpy as np

from labs.lab12_flash_attention.other_ways import attend_plain, attend_split, combine
from mini_engine.engine.generation import SHIPPED
from mini_engine.sim.attention import Part, add_tile, attend_tiled, tiles_of, walk
from mini_engine.sim.generate import generate, open_checkpoint
from mini_engine.step.cards import load_spec

KV_HEADS, GROUP, D = 8, 2, 128  # Qwen3-0.6B


def peak_kb(attend: Callable[[], object]) -> float:
    """The most that was allocated at once, in KB of 1,000 bytes."""
    attend()  # what a first call imports is not counted
    tracemalloc.start()
    attend()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / 1e3


def main() -> None:
    rng = np.random.default_rng(4)
    print("one query of Qwen3-0.6B, peak memory:  plain    in tiles   largest difference")
    for n in (128, 1024, 8192):
        q = rng.standard_normal((KV_HEADS, GROUP, D), np.float32)
        keys, values = rng.standard_normal((2, n, KV_HEADS, D), np.float32)
        plain = peak_kb(partial(attend_plain, q, keys, values))
        tiled = peak_kb(partial(attend_tiled, q, keys, values))
        truth = attend_plain(q, keys, values)
        others = attend_tiled(q, keys, values), attend_split(q, keys, values, splits=5)
        off = max(float(np.abs(truth - other).max()) for other in others)
        print(f"{n:13,} keys              {plain:9,.0f} KB {tiled:8,.0f} KB   {shown(off)}")

    print("\nfour keys with scores 1, 3, 2, 5 and values 10, 20, 30, 40, two walkers in turns:")
    one = np.ones((1, 1, 1), np.float32)
    keys = np.array([1, 3, 2, 5], np.float32).reshape(4, 1, 1)
    values = np.array([10, 20, 30, 40], np.float32).reshape(4, 1, 1)
    parts = []
    for split in range(2):
        tiles = tiles_of(4, 1, split, 2)
        part = walk(one, keys, values, [])
        print(f"  walker {split}          {line(part)}")
        for tile in tiles:
            part = add_tile(part, one, keys[tile], values[tile])
            print(f"    keys {tile.start} to {tile.stop - 1}    {line(part)}")
        parts.append(part)
    whole = combine(parts)
    print(f"  combined          {line(whole)}   result {(whole.acc / whole.l).item():.4f}")

    written = generate(open_checkpoint(SHIPPED), load_spec("h200"), ["Return the"], "NONE",
                       max_new_tokens=24)  # fmt: skip
    print(f"\n'Return the' goes on with {written.texts[0]!r}")


def line(part: Part) -> str:
    return f"m {part.m.item():5.1f}  l {part.l.item():7.4f}  acc {part.acc.item():8.4f}"


def shown(off: float) -> str:
    """The last bits depend on the machine, so they are not shown."""
    return "rounding" if off < 1e-5 else f"{off:.3g}"


if __name__ == "__main__":
    main()
