"""What the shows of labs 11, 12b and 15 share: a program's loads in a line, a text within seconds.

`lane` tells what a program of a watched launch did. `continued` writes a text of the small
checkpoint with the kernels of some modules in Triton's interpreter. All other ops compute their
references in PyTorch: a whole step in the interpreter takes many seconds, most of them for others.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection
from contextlib import ExitStack
from itertools import groupby
from unittest import mock

import numpy as np

from labs.support.watched import Event, Program, Watch
from mini_engine.cuda import generate as cuda
from mini_engine.cuda.generate import Kernels
from mini_engine.cuda.graphs.backend import graphs_for
from mini_engine.engine.generation import SHIPPED

PROMPT = "Return the"
OPS = "norm activation rope attention linear head pick fused_attention prefill"


def lane(watch: Watch, program: Program) -> str:
    """What it did, in order: tensors that it loads, `→` those that it stores."""
    words = [_word(watch, event) for event in program.events]
    counted = ((word, len(list(same))) for word, same in groupby(words))
    return " ".join(word if times == 1 else f"{word}×{times}" for word, times in counted)


def _word(watch: Watch, event: Event) -> str:
    if event.kind in ("release", "wait"):
        return f"|{event.kind}|"
    found = [name for name in watch.tensors if watch.elements(event.kind, name, [event])]
    name = found[0] if found else "elsewhere" if np.size(event.addresses) else "nothing"
    return {"store": "→", "atomic": "+"}.get(event.kind, "") + name


def continued(prompt: str, max_new_tokens: int, ours: Collection[str], kernels: Kernels = 9) -> str:
    """The text on the CPU, in float32. `ours`: modules of mini_engine.cuda.kernels whose kernels
    run. `kernels`: of a layer of the decode step."""
    with ExitStack() as stack:
        for name in OPS.split():
            if name not in ours:
                module = importlib.import_module(f"mini_engine.cuda.kernels.{name}")
                stack.enter_context(mock.patch.object(module, "runs_triton", return_value=False))
        cpu = graphs_for("cpu")
        stack.enter_context(mock.patch.object(cuda, "nearest_backend", return_value=cpu))
        made = cuda.generate(
            str(SHIPPED),
            [prompt],
            "NONE",
            max_new_tokens=max_new_tokens,
            kernels=kernels,
            tell=lambda _: None,
        )
    return " ".join(f"{prompt}{made.texts[0]}".split())
