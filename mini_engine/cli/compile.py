"""Compile the decoder by a backend of our own, twice, and say what the second start was spared.

  python -m mini_engine compile
  python -m mini_engine compile --model Qwen/Qwen3-0.6B --compiler inductor --cache out/compiled

Dynamo traces the plain model into one graph, in which attention is one node. Our pass makes one op
of each addition and the RMSNorm after it. The graph is cut at every attention; each piece between
two of them is compiled, equal ones once; and all of it is kept under a key made of what it depends
on. Then the same happens again in another process, which finds the result and traces nothing.

Each start runs a step of a few tokens and a step of one, which are two traces, and compares its
hidden states with those of the plain model. The times are of this machine and of starting up; they
say nothing about how fast a step is. How fast compiled pieces are on a GPU is not yet measured.

--compiler eager     a piece runs as its graph stands, op by op (default)
--compiler inductor  PyTorch's compiler writes kernels: on a GPU in Triton, on a CPU in C++, for
                     which it needs a C++ compiler, and minutes
--no-pass            leave the graph as Dynamo wrote it
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from mini_engine.cli import options
from mini_engine.model.config import SHAPES, ModelConfig

if TYPE_CHECKING:
    from mini_engine.cuda.compile.backend import Start


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", metavar="FOLDER", help="checkpoint folder, or a hub id (default: tiny-qwen3)")
    add(
        "--shape", metavar="NAME", help=f"random weights of this shape instead: {', '.join(SHAPES)}"
    )
    add("--tokens", type=options.positive, default=8, metavar="N", help="of the first step, from 2")
    add("--compiler", default="eager", choices=("eager", "inductor"), help="what runs a piece")
    add("--no-pass", dest="passes", action="store_false", help="without add + RMSNorm as one op")
    words = "keep what is compiled here (default: thrown away)"
    add("--cache", type=options.out_folder, metavar="DIR", help=words)


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    if args.tokens < 2:
        raise ValueError("--tokens 1: a step of one token has a trace of its own; give 2 or more")
    if args.model and args.shape:
        raise ValueError("--model has weights, and --shape is for random ones instead: give one")
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"compile needs PyTorch ({error}): pip install 'torch>=2.11,<2.14'"
        ) from None
    with tempfile.TemporaryDirectory() as thrown_away:
        asked = vars(args) | {"cache": str(args.cache or thrown_away)}
        words = {
            name: asked[name]
            for name in ("model", "shape", "tokens", "compiler", "passes", "cache")
        }
        starts = []
        for which in ("first", "second"):
            with console.status(f"{which} start"):
                starts.append(in_another_process(words))
            notes = starts[-1].pop("notes")
            for note in notes if which == "first" else notes[1:]:
                console.print(note, markup=False, soft_wrap=True)
    return {**starts[0].pop("about"), "passes": args.passes, "compiler": args.compiler,
            "starts": [{k: v for k, v in s.items() if k != "about"} for s in starts]}  # fmt: skip


def in_another_process(words: dict[str, Any]) -> dict[str, Any]:
    """`start`, in an interpreter that has imported nothing and traced nothing."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=fresh) as pool:
        return pool.submit(start, words).result()


def start(words: dict[str, Any]) -> dict[str, Any]:
    """One start: a model, a step of several tokens, a step of one."""
    import torch

    from mini_engine.cuda.attention import HostAttention
    from mini_engine.cuda.compile.backend import CompiledModel
    from mini_engine.cuda.compile.cache import Cache
    from mini_engine.cuda.generate import dtype_for, nearest_backend
    from mini_engine.cuda.inputs import StepInputs
    from mini_engine.cuda.model import KVCache, Model
    from mini_engine.cuda.weights import load_weights, no_room, random_weights, resolve_model
    from mini_engine.engine.generation import SHIPPED

    notes: list[str] = []
    backend = nearest_backend(notes.append)
    device, dtype = backend.device, dtype_for(backend, notes.append)
    folder = None if words["shape"] else resolve_model(words["model"] or str(SHIPPED))
    config = ModelConfig.from_folder(folder) if folder else options.shape_of(words["shape"])
    if words["tokens"] >= config.max_position_embeddings:
        raise ValueError(
            f"--tokens {words['tokens']:,}: {config.name} was made for "
            f"{config.max_position_embeddings:,}, and one more follows: give fewer"
        )
    if reason := no_room(config, backend, "bf16" if dtype == torch.bfloat16 else "fp32"):
        raise ValueError(reason)
    weights = (
        load_weights(config, folder, device, dtype)
        if folder
        else random_weights(config, device, dtype, seed=0)
    )
    block, tokens = 16, words["tokens"]
    blocks = 1 + -(-(tokens + 1) // block)
    caches = [KVCache.allocate(config, blocks, block, device, dtype) for _ in range(2)]
    model = CompiledModel(
        weights,
        caches[0],
        passes=words["passes"],
        compiler=words["compiler"],
        store=Cache(words["cache"], notes.append),
    )
    plain = Model(weights, caches[1])

    def step(begin: int, count: int) -> tuple[StepInputs, HostAttention]:
        def ints(values: Any) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        positions = list(range(begin, begin + count))
        ids = [(7 * position + 3) % config.vocab_size for position in positions]
        slots = [block + position for position in positions]  # block 0 is nobody's
        table = [list(range(1, blocks))]
        inputs = StepInputs(
            *map(ints, (ids, positions, slots, [count], [begin + count], [count - 1], table))
        )
        return inputs, HostAttention((count,), (begin + count,), block)

    seconds, furthest = [], 0.0
    with torch.inference_mode():
        for begin, count in ((0, tokens), (tokens, 1)):
            inputs, attention = step(begin, count)
            began = time.perf_counter()
            hidden = model.body(inputs, attention)
            backend.synchronize()
            seconds.append(time.perf_counter() - began)
            wanted = plain.body(inputs, attention)
            apart = (hidden - wanted).abs().max() / wanted.abs().max()
            furthest = max(furthest, apart.item())
    return {
        "about": {
            "model": config.name,
            "device": str(device),
            "layers": config.num_layers,
            "hidden": config.hidden_size,
        },
        "first_steps_s": seconds,
        "furthest_from_plain": furthest,
        "traces": [_told(one) for one in model.starts],
        "notes": notes,
    }


def _told(one: Start) -> dict[str, Any]:
    """A trace, with the seconds of each stage beside the rest."""
    spent = {f"{stage}_s": seconds for stage, seconds in one.seconds.items()}
    return {name: value for name, value in vars(one).items() if name != "seconds"} | spent


def show(result: dict[str, Any], console: Console) -> None:
    first, second = result["starts"]
    trace = first["traces"][0]
    console.print(
        f"[bold]{result['model']}[/bold] on {result['device']}, {result['layers']} layers, "
        f"pieces run by {result['compiler']}"
    )
    found = f"{trace['matches']} places (2 a layer, less 1)" if result["passes"] else "not run"
    console.print(f"pass, add + RMSNorm as one op: {found}")
    console.print(
        f"cut at {trace['attentions']} attentions into {trace['pieces']} pieces, "
        f"{trace['distinct']} of them different",
        soft_wrap=True,
    )
    stages = ("trace", "pass", "split", "compile", "load")
    table = Table("start", "tokens", "cached", *stages, "first step", title="seconds", min_width=70)
    for name, start in (("first", first), ("second", second)):
        for one, whole in zip(start["traces"], start["first_steps_s"], strict=True):
            spent = [f"{s:.3f}" if (s := one.get(f"{k}_s")) else "" for k in stages]
            tokens, cached = (
                "1" if one["tokens"] == "1" else "2 +",
                "yes" if one["from_cache"] else "no",
            )
            table.add_row(name, tokens, cached, *spent, f"{whole:.3f}")
    console.print(table)
    far = max(start["furthest_from_plain"] for start in (first, second))
    equal = f"up to {far:.1e} of the largest apart" if far else "equal, bit for bit"
    console.print(f"hidden states of both starts and of the plain model: {equal}")
