"""What several GPUs say to each other in a step: a sum over all ranks, or all of their logits.

A rank's part of the sum, its message, is a row of hidden states for each token. Three ways to sum:

    one-shot   each rank reads all other messages, in one kernel        1 exchange, (n - 1) messages
    two-shot   each sums its share of the rows, then reads the others   2 exchanges, 2 (n - 1) / n
    ring       shares go round, once to be summed, once to be read      2 (n - 1) hops, as many

The fastest that the link has is taken. All of them are kernels, which a graph holds as any other.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mini_engine.files import read_object, typed
from mini_engine.step.cards import DeviceSpec
from mini_engine.step.ops import Kind

LINKED: tuple[Kind, ...] = ("all_reduce", "all_gather")
_FILE = Path(__file__).with_name("links.json")


@dataclass(frozen=True)
class Link:
    cards: tuple[str, ...]  # those that have it; all others have PCIe
    start_us: float  # an exchange, its kernel included, or a ring ...
    rank_us: float  # ... and of an exchange this much more for each rank
    gb_s: float  # what a rank reads from its peers; 0: as fast as from the host
    ring_hop_us: float
    one_kernel_ranks: int  # the most that one kernel joins: more of them need the ring
    source: str


LINKS = {name: typed(Link, of, f"{_FILE}: {name}") for name, of in read_object(_FILE).items()}


def link_us(kind: Kind, moved_bytes: Any, ranks: int, spec: DeviceSpec) -> Any:
    """GPU time of a kernel of these kinds, from the bytes that it reads and writes on its own card;
    takes arrays, too. A sum reads and writes a message, a gathering reads one and writes all."""
    # what usually joins cards of this kind: whether this machine has a bridge is not known
    link = next((link for link in LINKS.values() if spec.name in link.cards), LINKS["pcie"])
    message_bytes = moved_bytes / (2 if kind == "all_reduce" else ranks + 1)
    moved_us = message_bytes / ((link.gb_s or spec.link_gb_s) * 1e3)
    exchange_us = link.start_us + link.rank_us * ranks
    if kind == "all_gather":
        return exchange_us + (ranks - 1) * moved_us
    shared_us = 2 * (ranks - 1) / ranks * moved_us
    ring_us = link.start_us + 2 * (ranks - 1) * link.ring_hop_us + shared_us
    if ranks > link.one_kernel_ranks:
        return ring_us
    one_shot_us = exchange_us + (ranks - 1) * moved_us
    return np.minimum(np.minimum(one_shot_us, 2 * exchange_us + shared_us), ring_us)
