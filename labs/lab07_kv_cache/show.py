"""A step as arrays, a key turned, pairs counted. Then three texts through your cache at once, what
a step reads, and who owns which of its slots."""

from dataclasses import replace

import numpy as np

from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.engine.batch import Request, RequestState, ScheduledBatch, ScheduledRequest
from mini_engine.engine.engine import Engine
from mini_engine.engine.generation import SHIPPED, limits_for, requests_for
from mini_engine.engine.sampling import GREEDY
from mini_engine.engine.step_arrays import request_arrays, step_arrays, token_arrays
from mini_engine.sim.device import Device
from mini_engine.sim.generate import open_checkpoint
from mini_engine.sim.kernels import attention_pairs, rope_kv_write
from mini_engine.sim.runner import SimRunner
from mini_engine.step.cards import load_spec

PROMPTS = ("Return the", "def add(a, b):", "The list has")
LETTERS, NEW_TOKENS = "abc", 16


def main() -> None:
    one_step()
    texts()


def one_step() -> None:
    """A prompt, a decode and a chunk: what each of the first four holes says of them."""
    requests = [("a", 0, 4, (3,)), ("b", 5, 1, (1, 6)), ("c", 3, 2, (4, 2))]
    entries = []
    for name, start, count, table in requests:
        state = RequestState(Request(name, list(range(start + count)), 9), [], num_computed=start)
        entries.append(ScheduledRequest(state, start, count, table, count > 1, True))
    print("a: a prompt of 4 tokens   b: one more after 5   c: a chunk of 2 after 3; blocks of 4")
    tokens = token_arrays(entries, block_size=4)
    whose = [name for name, _, count, _ in requests for _ in range(count)]
    for name, row in {"whose row": whose, **tokens}.items():
        print(f"  {name:13}{' '.join(f'{one!s:>2}' for one in list(row))}")
    arrays = {name: np.asarray(array) for name, array in request_arrays(entries, 2).items()}
    for row, (name, *_) in enumerate(requests):
        told = {of: array[row] for of, array in arrays.items()}
        print("  {} brings {query_lens}, then has {context_lens}; its last row {last_rows}, "
              "blocks {block_table}".format(name, **told))  # fmt: skip
    angle, one = np.arange(8.0, dtype=np.float32)[:, None], np.ones((4, 1), np.float32)
    q, keys, values = np.zeros((4, 2)), np.zeros((1, 4, 1, 2)), np.zeros((1, 4, 1, 2))
    qkv = np.concatenate([one, 0 * one] * 3, axis=1)
    order = np.arange(4)
    rope_kv_write.function(q, keys, values, qkv, order, order, np.cos(angle), np.sin(angle))
    turned = np.degrees(np.arctan2(keys[0, :, 0, 1], keys[0, :, 0, 0])).tolist()
    print(f"  a key of a, by its position: turned by {', '.join(f'{t:.0f}°' for t in turned)}")
    pairs = int(attention_pairs(arrays["query_lens"], arrays["context_lens"]))
    print(f"  attention compares {pairs} pairs of query and key\n")


def texts() -> None:
    tiny = open_checkpoint(SHIPPED)
    limits, eager = limits_for(tiny.config, len(PROMPTS)), GraphDispatcher("NONE", [], len(PROMPTS))
    runner = SimRunner(Device(load_spec("h200")), tiny.config, tiny.weights, limits, eager)
    requests = [
        replace(request, eos_ids=())  # a text that goes wrong does not end, either
        for request in requests_for(PROMPTS, tiny.tokenizer, limits, NEW_TOKENS, GREEDY)
    ]
    letter_of = {r.request_id: letter for r, letter in zip(requests, LETTERS, strict=True)}
    owner: dict[int, str] = {}  # slot -> letter of the last request that wrote there
    lines = list[str]()
    rows_and_slots: list[tuple[int, int]] = []  # of each step: rows computed, slots read

    def note(batch: ScheduledBatch) -> None:
        arrays = step_arrays(batch, limits)
        rows = [
            letter_of[entry.request.request_id] for entry in batch.entries for _ in entry.token_ids
        ]
        rows_and_slots.append((len(rows), int(arrays["context_lens"].sum())))
        owner.update(zip(arrays["slot_mapping"].tolist(), rows, strict=False))
        pairs = int(attention_pairs(arrays["query_lens"], arrays["context_lens"]))
        lines.append(f"{len(arrays['input_ids']):3} rows at positions "
                     f"{' '.join(map(str, arrays['positions']))}: {pairs} pairs")  # fmt: skip

    done = Engine(runner, limits, eager).run(requests, on_step=lambda step: note(step.batch))
    for prompt, letter, one in zip(PROMPTS, LETTERS, done, strict=True):
        print(f"{letter}  {prompt!r} goes on with {tiny.tokenizer.decode(list(one.tokens))!r}")
    print("\nthe first steps:", *lines[:3], sep="\n  ")
    computed, texts = map(sum, zip(*rows_and_slots, strict=True))
    print(f"\nslots read, step by step: {' '.join(str(slots) for _, slots in rows_and_slots)}")
    print(f"rows computed: {computed} with your cache, {texts} if each step read its texts anew")
    print(f"\nblocks of {limits.block_size} slots, and whose token was written to each:")
    for block in range(1 + max(owner, default=0) // limits.block_size):
        first = block * limits.block_size
        slots = range(first, first + limits.block_size)
        print(f"  block {block}  {''.join(owner.get(slot, '.') for slot in slots)}")


if __name__ == "__main__":
    main()
