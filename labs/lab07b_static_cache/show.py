"""Your masks as pictures, two texts that share a cache without pages, and what their steps read."""

from dataclasses import replace

import torch

from labs.lab07b_static_cache.masked_rows import columns_of_batch
from labs.lab07b_static_cache.static_cache import MaskedStep, StaticCache, decode_step, prompt_step
from labs.lab07b_static_cache.static_engine import StaticEngine
from mini_engine.cuda.graphs.backend import graphs_for
from mini_engine.cuda.model import Model
from mini_engine.cuda.weights import load_weights
from mini_engine.engine.generation import SHIPPED, limits_for, requests_for
from mini_engine.engine.sampling import GREEDY
from mini_engine.model.config import ModelConfig
from mini_engine.model.tokenizer import Tokenizer

PROMPTS, NEW_TOKENS, FEWER = ("Return the", "def add(a"), 8, 3


def main() -> None:
    print("prompts of 3 and 5 tokens, T_max 8: what each token sees, and its slot")
    draw(prompt_step([[11, 12, 13], [21, 22, 23, 24, 25]], 8))
    print("the next step; row 2 has ended")
    draw(decode_step([14, 26, 0], [4, 6, 0], 8))
    with torch.inference_mode():
        write()


def draw(step: MaskedStep) -> None:
    for row, mask in enumerate(step.mask):
        for query, seen in enumerate(mask):
            picture = "".join("█" if column else "·" for column in seen)
            last = "  ← predicts" if step.last_rows[row] == row * len(mask) + query else ""
            print(f"   row {row}  {picture:8}  slot {step.slots[row, query]:2}{last}")


def write() -> None:
    backend, config = graphs_for("cpu"), ModelConfig.from_folder(SHIPPED)
    tokenizer = Tokenizer(SHIPPED, config.eos_token_ids)
    requests = requests_for(
        PROMPTS, tokenizer, limits_for(config, len(PROMPTS)), NEW_TOKENS, GREEDY
    )
    requests[1] = replace(requests[1], max_new_tokens=FEWER)  # its row ends and runs on
    t_max = max(len(request.prompt) for request in requests) + NEW_TOKENS
    weights = load_weights(config, SHIPPED, backend.device, torch.float32)
    cache = StaticCache.allocate(config, len(PROMPTS), t_max, backend.device, torch.float32)
    engine = StaticEngine(Model(weights, cache.blocks()), cache, backend)
    done = engine.generate(requests)
    print(f"two texts in rows of {t_max} columns, from graphs {', '.join(map(str, engine.graphs))}")
    for prompt, one in zip(PROMPTS, done, strict=True):
        print(f"   {prompt!r} goes on with {tokenizer.decode(list(one.tokens))!r}")
    lengths = [(len(r.prompt), len(one.tokens)) for r, one in zip(requests, done, strict=True)]
    read = columns_of_batch(lengths, t_max)
    print(f"of {read.total} columns that were read, {read.needed} were needed, "
          f"{read.beyond} lie behind a text, {read.ended} in a row that had ended")  # fmt: skip


if __name__ == "__main__":
    main()
