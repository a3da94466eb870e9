"""The measuring step of lab 13b: a model started twice through your backend, and the seconds of it.

In:  words: --model, --tokens, --compiler, --no-pass, --cache. Out: what became of the graph, and
for each start the seconds of each stage; the second finds in the cache what the first has left.

Each start runs a step of a few tokens and a step of one, which are two traces, and compares its
hidden states with those of the plain model. The seconds are of this machine and of starting up;
they say nothing about how fast a step is, which is not yet measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from labs.lab13b_compile_backend.backend import CompiledModel
from labs.lab13b_compile_backend.cache import Cache
from labs.lab13b_compile_backend.pieces import COMPILERS
from mini_engine.cuda.attention import HostAttention
from mini_engine.cuda.generate import dtype_for, nearest_backend
from mini_engine.cuda.inputs import StepInputs
from mini_engine.cuda.model import KVCache, Model
from mini_engine.cuda.weights import load_weights
from mini_engine.engine.generation import SHIPPED
from mini_engine.model.config import ModelConfig
from mini_engine.model.hub import resolve_model

STAGES = ("trace", "pass", "split", "compile", "load")
BLOCK = 16  # tokens


def main(words: Sequence[str]) -> int:
    """The command. Exit code 0."""
    parser = argparse.ArgumentParser(prog="./lab measure 13b")
    add = parser.add_argument
    add("--model", default=str(SHIPPED), help="checkpoint folder, or a hub id (default: shipped)")
    add("--tokens", type=int, default=8, metavar="N", help="of the first step, from 2 (default: 8)")
    add("--compiler", default="eager", choices=COMPILERS, help="inductor takes minutes")
    add("--no-pass", dest="passes", action="store_false", help="without add + RMSNorm as one op")
    add("--cache", type=Path, metavar="DIR", help="keep what is compiled (default: thrown away); "
        "with inductor its files are pickles: name no folder that others write to")  # fmt: skip
    args = parser.parse_args(list(words))
    console = Console(highlight=False)
    if args.tokens < 2:
        parser.error(f"--tokens {args.tokens}: a step of one token has a trace of its own")
    with tempfile.TemporaryDirectory() as thrown_away, torch.inference_mode():
        started_twice(args, args.cache or Path(thrown_away), console)
    return 0


def started_twice(args: argparse.Namespace, folder: Path, console: Console) -> None:
    backend = nearest_backend(console.print)
    device, dtype = backend.device, dtype_for(backend, console.print)
    checkpoint = resolve_model(args.model)
    config = ModelConfig.from_folder(checkpoint)
    weights = load_weights(config, checkpoint, device, dtype)
    blocks = 2 + args.tokens // BLOCK  # room for one token more; block 0 is nobody's
    table = Table("start", "tokens", "cached", *STAGES, "whole step, s", box=None)
    furthest = 0.0

    def step(begin: int, count: int) -> tuple[StepInputs, HostAttention]:
        positions = torch.arange(begin, begin + count, dtype=torch.int32, device=device)
        ids = (7 * positions + 3) % config.vocab_size
        one = torch.ones(1, dtype=torch.int32, device=device)
        blocks_of = torch.arange(1, blocks, dtype=torch.int32, device=device)[None]
        inputs = StepInputs(
            ids, positions, BLOCK + positions, one * count, one * (begin + count),
            one * (count - 1), blocks_of,
        )  # fmt: skip
        return inputs, HostAttention((count,), (begin + count,), BLOCK)

    for name in ("first", "second"):
        caches = [KVCache.allocate(config, blocks, BLOCK, device, dtype) for _ in range(2)]
        plain = Model(weights, caches[0])
        model = CompiledModel(
            weights, caches[1], passes=args.passes, compiler=args.compiler,
            store=Cache(folder, console.print),
        )  # fmt: skip
        for begin, count in ((0, args.tokens), (args.tokens, 1)):
            inputs, attention = step(begin, count)
            began = time.perf_counter()
            hidden = model.body(inputs, attention)
            backend.synchronize()
            whole_s, start = time.perf_counter() - began, model.starts[-1]
            wanted = plain.body(inputs, attention)
            apart = (hidden - wanted).abs().max() / wanted.abs().max()
            furthest = max(furthest, apart.item())
            spent = [f"{start.seconds[s]:.3f}" if s in start.seconds else "" for s in STAGES]
            cached = "yes" if start.from_cache else "no"
            table.add_row(name, start.tokens, cached, *spent, f"{whole_s:.3f}")
    console.print(
        f"{config.name} on {device}: {start.matches} places where the pass found its pattern; "
        f"{start.attentions} attentions, {start.pieces} pieces, {start.distinct} of them different"
    )
    console.print(table)
    equal = f"up to {furthest:.1e} of the largest apart" if furthest else "equal, bit for bit"
    console.print(f"hidden states of both starts and of the plain model: {equal}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
