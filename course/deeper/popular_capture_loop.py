"""The capture loop that popular texts print, with four faults, and a day that shows them.

    python -m course.deeper.popular_capture_loop

The model is small enough to follow by hand: each user owns a slot of a cache, a step writes the
user's token there, and the answer is the sum of all tokens in the slot, modulo 1,000. The day is
played twice: eagerly, which gives what is expected, and by `PopularLoop`, which gives what is
written. Whatever the loop writes, the day goes on with the expected token.

The page that goes with it is `course/deeper/find-the-faults.md`. Mend `PopularLoop`, nothing else.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding

from mini_engine.cuda.graphs.backend import GraphBackend, graphs_for

VOCAB, LENGTH = 1000, 16


class PopularLoop:
    """One graph for each of `sizes`, all reading the same static buffers."""

    def __init__(self, backend: GraphBackend, model: Model, sizes: tuple[int, ...]) -> None:
        self.backend, self.model, self.sizes = backend, model, sizes
        self.ids = torch.zeros(max(sizes))
        self.positions = torch.zeros(max(sizes))
        self.slots = torch.zeros(max(sizes))
        self.answers = torch.zeros(max(sizes), dtype=torch.long)
        self.pool = backend.graph_pool_handle()
        self.graphs = {}

    def capture(self) -> None:
        """Largest first, each size warmed up once."""
        for size in sorted(self.sizes, reverse=True):
            self.forward(size)
            graph = self.backend.CUDAGraph()
            with self.backend.graph(graph, pool=self.pool):
                self.forward(size)
            self.graphs[size] = graph

    def forward(self, rows: int) -> None:
        answers = self.model.step(self.ids[:rows], self.positions[:rows], self.slots[:rows])
        self.answers[:rows] = answers

    def decode(self, ids: Tensor, positions: Tensor, slots: Tensor) -> Tensor:
        """One step of `len(ids)` users: copy in, replay, slice out."""
        batch = len(ids)
        self.ids[:batch] = ids
        self.positions[:batch] = positions
        self.slots[:batch] = slots
        self.graphs[batch].replay()
        return self.answers[:batch]

    def grow(self, slots: int) -> None:
        """Make room for more users."""
        self.model.grow(slots)


# ------------------------------------------------------- what is right: the model, eagerly


class Model:
    """What it answers is the sum of what it has heard. Slot 0 of its cache is nobody's."""

    def __init__(self, slots: int) -> None:
        self.weight = torch.arange(VOCAB, dtype=torch.float32)[:, None]  # token t is the number t
        self.time = torch.arange(LENGTH)
        self.cache = torch.zeros(slots, LENGTH)

    def step(self, ids: Tensor, positions: Tensor, slots: Tensor) -> Tensor:
        """(rows,) three times -> (rows,) answers."""
        self.cache.index_put_((slots, positions), embedding(ids, self.weight)[:, 0])
        heard = self.time <= positions[:, None]  # (rows, LENGTH)
        return (self.cache[slots] * heard).sum(-1).remainder(VOCAB).long()

    def decode(self, ids: Tensor, positions: Tensor, slots: Tensor) -> Tensor:
        return self.step(ids, positions, slots)

    def grow(self, slots: int) -> None:
        larger = torch.zeros(slots, LENGTH)
        larger[: len(self.cache)] = self.cache
        self.cache = larger


# ------------------------------------------------------- a day of service

# before the step: who leaves, who arrives with which prompt, how many slots there must be
DAY = (
    ((), {"ann": (100, 20), "bob": (7,)}, 5),
    ((), {"cem": (300, 1, 1), "dan": (40, 2)}, 5),
    ((), {}, 5),
    (("dan",), {}, 5),
    (("cem",), {"eve": (500, 10, 10, 10, 10, 10)}, 5),
    (("ann",), {}, 5),
    ((), {}, 9),
    ((), {"fay": (600, 60, 6)}, 9),
    ((), {}, 9),
)


def main() -> None:
    expected, model = Model(5), Model(5)
    loop = PopularLoop(graphs_for("cpu"), model, sizes=(1, 2, 4))
    try:
        loop.capture()
    except Exception as error:
        print(f"capture: {type(error).__name__}: {error}")
        return
    users: dict[str, tuple[int, list[int]]] = {}  # name -> slot, tokens so far
    free = list(range(1, len(model.cache)))  # a slot that was given back goes to the end
    print(f"{'step':6}{'batch':18}{'expected':18}written")
    for number, (leaving, arriving, size) in enumerate(DAY, start=1):
        if size > len(expected.cache):
            print(f"      the cache grows from {len(expected.cache)} slots to {size}")
            free += range(len(expected.cache), size)
            expected.grow(size)
            loop.grow(size)
        for name in leaving:
            slot, _ = users.pop(name)
            free.append(slot)
        for name, prompt in arriving.items():
            slot = free.pop(0)
            users[name] = slot, list(prompt)
            for at, token in enumerate(prompt[:-1]):  # prompts are run eagerly, the last by decode
                one = torch.tensor([token]), torch.tensor([at]), torch.tensor([slot])
                expected.step(*one)
                model.step(*one)
        batch = (
            torch.tensor([tokens[-1] for _, tokens in users.values()]),
            torch.tensor([len(tokens) - 1 for _, tokens in users.values()]),
            torch.tensor([slot for slot, _ in users.values()]),
        )
        right = expected.decode(*batch).tolist()
        line = f"{number:<6}{' '.join(users):18}{' '.join(map(str, right)):18}"
        try:
            written = loop.decode(*batch).tolist()
        except Exception as error:
            print(f"{line}{type(error).__name__}: {error}")
            return
        wrong = [u for u, a, b in zip(users, right, written, strict=True) if a != b]
        remark = f"wrong: {' '.join(wrong)}" if wrong else ""
        print(f"{line}{' '.join(map(str, written)):18}{remark}".rstrip())
        for (_, tokens), token in zip(users.values(), right, strict=True):
            tokens.append(token)


if __name__ == "__main__":
    main()
