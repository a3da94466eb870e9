"""What your backend makes of the shipped model: parts, places, pieces, traces, and its text."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from labs.lab13b_compile_backend.backend import CompiledModel
from labs.lab13b_compile_backend.cache import Cache
from mini_engine.cuda.attention import HostAttention
from mini_engine.cuda.inputs import StepInputs
from mini_engine.cuda.model import KVCache, Model
from mini_engine.cuda.weights import load_weights
from mini_engine.engine.generation import SHIPPED
from mini_engine.model.config import ModelConfig
from mini_engine.model.tokenizer import Tokenizer

CPU, BLOCK_SIZE, BLOCKS, TOKENS = torch.device("cpu"), 16, 3, 8
CONFIG = ModelConfig.from_folder(SHIPPED)
TOKENIZER = Tokenizer(SHIPPED, CONFIG.eos_token_ids)
WEIGHTS = load_weights(CONFIG, SHIPPED, CPU, torch.float32)


def ints(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def new_cache() -> KVCache:
    return KVCache.allocate(CONFIG, BLOCKS, BLOCK_SIZE, CPU, torch.float32)


def step(model: Model, tokens: list[int], before: int) -> int:
    """Run `tokens` of a request that has `before` in its cache; returns the next one."""
    count, context = len(tokens), before + len(tokens)
    places = list(range(before, context))
    inputs = StepInputs(
        ints(tokens), ints(places), ints(places), ints([count]), ints([context]),
        ints([count - 1]), ints(list(range(BLOCKS)))[None],
    )  # fmt: skip
    attention = HostAttention((count,), (context,), BLOCK_SIZE)
    return int(model.head(model.body(inputs, attention), inputs)[1])


def text(model: Model, prompt: str) -> str:
    """A prompt in one step, then one token a step."""
    ids = TOKENIZER.encode(prompt)
    said = [step(model, ids, 0)]
    for _ in range(TOKENS - 1):
        said.append(step(model, said[-1:], len(ids) + len(said) - 1))
    return TOKENIZER.decode(said)


def main() -> None:
    told: list[str] = []
    print(f"plain         {text(Model(WEIGHTS, new_cache()), 'Raise an error if')!r}")
    with tempfile.TemporaryDirectory() as folder:
        store = Cache(folder, told.append)
        for start in ("first start", "second start"):
            model = CompiledModel(WEIGHTS, new_cache(), store=store)
            print(f"\n{start:13} {text(model, 'Raise an error if')!r}")
            for one in model.starts:
                origin = "from the cache" if one.from_cache else "traced"
                print(
                    f"  {one.tokens} tokens: {origin}; {one.pieces} pieces, {one.distinct} of them "
                    f"different, {one.attentions} attentions; the pass: {one.matches} places"
                )
            files = len(list(Path(folder).iterdir()))
            print(f"  {files} files in the cache, {len(told)} complaints")
        print("\nthe largest file, cut short, under a key that is not its own, and whole:")
        file = max(Path(folder).iterdir(), key=lambda file: (file.stat().st_size, file.name))
        content, key = file.read_bytes(), file.name.partition(".")[0]
        for name, damaged in ((key, content[:-9]), ("other", content), (key, content)):
            file.with_name(f"{name}.compiled").write_bytes(damaged)
            told.clear()
            found = store.read(name)
            print(f"  {'used' if found else 'not used'}, {len(told)} complaints")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
