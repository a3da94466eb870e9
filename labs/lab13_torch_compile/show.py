"""What your harness says of two decode steps, and what both of them write."""

from __future__ import annotations

import contextlib
import io
import logging
from dataclasses import replace
from typing import Any

import torch

from labs.lab13_torch_compile.compile_report import Watch, graph_breaks, launches, over_calls
from labs.lab13_torch_compile.decode_step import (
    Batch,
    careless_step,
    compiled_step,
    draw,
    repaired_step,
    started,
)
from mini_engine.cuda.model import KVCache, Model
from mini_engine.cuda.weights import load_weights, random_weights
from mini_engine.engine.generation import SHIPPED
from mini_engine.model.config import ModelConfig
from mini_engine.model.tokenizer import Tokenizer

PROMPTS = ("A CUDA graph", "The first launch")  # the second one samples
MODES = ("eager", "default", "reduce-overhead")
STEPS, BLOCKS = 6, 4
CPU = torch.device("cpu")
CONFIG = ModelConfig.from_folder(SHIPPED)
TOKENIZER = Tokenizer(SHIPPED, CONFIG.eos_token_ids)


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def small_model() -> Model:
    """Its text says nothing, but it is traced as the shipped one is."""
    small = replace(CONFIG, hidden_size=16, intermediate_size=24, num_layers=1)
    cache = KVCache.allocate(small, 1 + 3 * BLOCKS, 16, CPU, torch.float32)
    return Model(random_weights(small, CPU, torch.float32, seed=1), cache)


def shipped_model() -> Model:
    cache = KVCache.allocate(CONFIG, 1 + 3 * BLOCKS, 16, CPU, torch.float32)
    return Model(load_weights(CONFIG, SHIPPED, CPU, torch.float32), cache)


def batch_of(model: Model, requests: int) -> Batch:
    """The prompts in turn, in the model's cache."""
    prompts = [TOKENIZER.encode(PROMPTS[i % 2]) for i in range(requests)]
    warmth = [0.8 * (i % 2) for i in range(requests)]
    return started(model, prompts, warmth, tuple(CONFIG.eos_token_ids), BLOCKS)


def text(model: Model, step: Any) -> list[str]:
    """What each request says in STEPS steps."""
    batch = batch_of(model, len(PROMPTS))
    rows = []
    for number in range(STEPS):
        draw(batch, seed=number)
        with contextlib.redirect_stdout(io.StringIO()):
            out = step(model, batch)
        rows.append((out[0] if isinstance(out, tuple) else out).tolist())
    return [TOKENIZER.decode(list(ids)) for ids in zip(*rows, strict=True)]


def main() -> None:
    small, shipped = small_model(), shipped_model()
    ladder = [(torch.ones(n),) for n in range(1, 12)]
    for dynamic in (None, False):
        hows = "".join(call.how[0] for call in over_calls(doubled, ladder, dynamic=dynamic))
        print(f"sizes 1 to 11, dynamic={dynamic!s:5}  {hows}")
    print("c compiled, r reused, e eager after all\n")
    for function in (careless_step, repaired_step):
        with contextlib.redirect_stdout(io.StringIO()):
            (call,) = over_calls(function, [(small, batch_of(small, 2))])
        told = ", ".join(f"{launches(call, mode)} {mode}" for mode in MODES)
        print(f"{function.__name__}: {len(call.graphs)} graphs; launches: {told}")
        for found in graph_breaks([call]):
            print(f"  breaks at {found.place}")
    watch = Watch()
    compiled = compiled_step(watch)
    for requests in (2, 3, 1):
        compiled(small, batch_of(small, requests))
    print(f"compiled_step for 2, 3 and 1 requests: {len(watch.graphs)} traces\n")
    for step in (careless_step, repaired_step):
        for line, said in zip(PROMPTS, text(shipped, step), strict=True):
            print(f"{step.__name__} {line!r} goes on: {said!r}")


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # Dynamo's carry the time of day
    with torch.no_grad():
        main()
