"""A clock that moves by known steps, the rule of the tokens, and ways to go wrong.

$STAND_IN of a child process: "dies" ends the process when the model is loaded, "hangs" never loads
it, "old" is a version with another interface, "spawns" leaves a process behind, whose number is in
the file $STAND_IN_PID.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

MODE = os.environ.get("STAND_IN", "")
PROMPT_US, DECODE_US, EVERY_TENTH_US = 50_000.0, 1_000.0, 3_000.0
VOCAB = 256
REAL_SLEEP = time.sleep


class Clock:
    """`time.perf_counter`, moved by hand."""

    def __init__(self) -> None:
        self.us = 0.0

    def __call__(self) -> float:
        return self.us / 1e6


CLOCK = Clock()


@dataclass
class Request:
    name: str | int
    prompt: list[int]
    most: int
    new: list[int] = field(default_factory=list)


class Steps:
    """The requests of one engine, and the time of its steps. The first batch, which warms up, is a
    hundred times as slow; so is nothing else."""

    def __init__(self, eager: bool) -> None:
        self.slow, self.decodes, self.factor = 2.0 if eager else 1.0, 0, 100.0
        self.waiting: list[Request] = []
        self.running: list[Request] = []

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def prompts(self, most: int) -> list[Request]:
        """Those whose prompts a step computes; none where nobody waits."""
        batch = self.waiting[:most]
        if batch:
            del self.waiting[:most]
            self.running += batch
            CLOCK.us += PROMPT_US * self.factor
        return batch

    def decode(self) -> None:
        self.decodes += 1
        took = DECODE_US if self.decodes % 10 else EVERY_TENTH_US
        CLOCK.us += took * self.slow * self.factor

    def write(self, batch: list[Request]) -> list[Request]:
        """A token to each; those that are done."""
        for one in batch:
            one.new.append(next_token(one.prompt + one.new))
        done = [one for one in batch if len(one.new) == one.most]
        self.running = [one for one in self.running if one not in done]
        if self.idle:
            self.factor, self.decodes = 1.0, 0
        return done


def load() -> None:
    """What happens when a model is loaded."""
    if MODE == "dies":
        os.write(2, b"CUDA error: out of memory\n")
        os._exit(3)
    if MODE == "hangs":
        print("loading", sys.stdin.read())  # whoever is asked nothing reads an empty answer
        REAL_SLEEP(600)
    if MODE == "spawns":
        left = subprocess.Popen(["sleep", "600"])
        Path(os.environ["STAND_IN_PID"]).write_text(str(left.pid))


def next_token(known: Sequence[int]) -> int:
    """The greedy token after these."""
    return (31 * known[-1] + len(known)) % VOCAB
