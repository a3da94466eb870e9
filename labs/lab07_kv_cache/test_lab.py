"""Lab 7: the KV cache. What you write is held against a decoder that has none.

`Uncached` computes a whole text at once, in 64 bits, with a full square of scores and a mask. It
shares no line with the engine.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from labs.support.counting import lines_run, peak_bytes
from labs.support.inputs import agree, frozen, random_weights
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.engine.batch import (
    Request,
    RequestState,
    ScheduledBatch,
    ScheduledRequest,
    SchedulerLimits,
)
from mini_engine.engine.engine import Engine
from mini_engine.engine.generation import SHIPPED
from mini_engine.engine.step_arrays import request_arrays, step_arrays, token_arrays
from mini_engine.model.checkpoint import EMBED, FINAL_NORM
from mini_engine.model.config import ModelConfig
from mini_engine.sim import kernels as k
from mini_engine.sim.device import Device
from mini_engine.sim.generate import open_checkpoint
from mini_engine.sim.model import KVCache, Model, StepInputs
from mini_engine.sim.runner import SimRunner
from mini_engine.sim.weights import Weights
from mini_engine.step.cards import load_spec

F32 = np.float32
# float32 here, float64 in the oracle; sums of up to a hundred numbers of size 1 to 10.
CLOSE = {"rtol": 1e-3, "atol": 1e-3}
LIMITS = SchedulerLimits(8, 64, num_blocks=40, block_size=4, max_model_len=64)
TINY = ModelConfig(
    name="tiny", family="qwen3", hidden_size=12, intermediate_size=20, num_layers=2, num_heads=4,
    num_kv_heads=2, head_dim=8, vocab_size=50, max_position_embeddings=64, rope_theta=100.0,
    rope_scaling=None, rms_norm_eps=1e-6, qkv_bias=False, qk_norm=True, tie_word_embeddings=True,
    dtype="float32", eos_token_ids=(),
)  # fmt: skip
ANGLES = np.asarray(TINY.rope_frequencies())


def entry(
    known: Sequence[int], start: int, query_len: int, table: Sequence[int], generated: int = 0
) -> ScheduledRequest:
    """Tokens start … start + query_len - 1 of a text; its last `generated` were sampled."""
    prompt, output = known[: len(known) - generated], known[len(known) - generated :]
    state = RequestState(Request("r", list(prompt), 99), list(output), num_computed=start)
    return ScheduledRequest(state, start, query_len, tuple(table), query_len > 1, True)


def same(mine: np.ndarray, right: np.ndarray, what: str) -> None:
    __tracebackhide__ = True  # the line to show is the caller's
    agree(mine, right, what, **CLOSE)


def listed(array: object) -> list[int]:
    return [int(number) for number in np.asarray(array)]


Text = tuple[list[int], int, int, list[int], int]  # what `entry` is made of, in its order


def random_texts(rng: random.Random, requests: int) -> list[Text]:
    """Decodes, chunks and whole prompts, their blocks scattered over the cache, none shared."""
    blocks = rng.sample(range(1, LIMITS.num_blocks), LIMITS.num_blocks - 1)
    texts = []
    for _ in range(requests):
        known = [rng.randrange(50) for _ in range(rng.randint(1, 16))]
        start = rng.choice([0, len(known) - 1, rng.randrange(len(known))])
        query_len = rng.choice([1, len(known) - start, rng.randint(1, len(known) - start)])
        held = -(-(start + query_len) // LIMITS.block_size)
        table = [blocks.pop() for _ in range(held)]
        texts.append((known, start, query_len, table, rng.randrange(len(known))))
    return texts


# ---------------------------------------------------------------- the oracle


def turned(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """RoPE with complex numbers: pair i of a head is multiplied by e^(i · position · angle)."""
    half = x.shape[-1] // 2
    pairs = x[..., :half] + 1j * x[..., half:]
    pairs = pairs * np.exp(1j * positions[:, None, None] * ANGLES)
    return np.concatenate([pairs.real, pairs.imag], axis=-1)


def masked_attention(q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Every token of a text at once. q (n, heads, D), keys and values (n, kv_heads, D)."""
    n, heads, dim = q.shape
    keys, values = (np.repeat(x, heads // x.shape[1], axis=1) for x in (keys, values))
    scores = np.einsum("qhd,khd->hqk", q, keys) / dim**0.5
    scores[:, ~np.tri(n, dtype=bool)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, values)


class Uncached:
    """A decoder of TINY's family. `logits(ids)`: (n, V), every token computed from scratch."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        w, n, positions = self.weights, len(ids), np.arange(len(ids))
        x = w.read(EMBED)[list(ids)].astype(float)
        for layer in w.layers:
            qkv = norm(x, layer["input_norm"]) @ layer["qkv"].T
            q, keys, values = np.split(qkv, [TINY.q_size, TINY.q_size + TINY.kv_size], axis=1)
            q = norm(q.reshape(n, TINY.num_heads, -1), layer["q_norm"])
            keys = norm(keys.reshape(n, TINY.num_kv_heads, -1), layer["k_norm"])
            attended = masked_attention(
                turned(q, positions), turned(keys, positions), values.reshape(keys.shape)
            )
            x = x + attended.reshape(n, -1) @ layer["o"].T
            gate, up = np.split(norm(x, layer["post_norm"]) @ layer["gate_up"].T, 2, axis=1)
            x = x + (gate / (1 + np.exp(-gate)) * up) @ layer["down"].T
        return norm(x, w.read(FINAL_NORM)) @ w.read(EMBED).T  # a tied head


def norm(x: np.ndarray, weight: np.ndarray | None, eps: float = TINY.rms_norm_eps) -> np.ndarray:
    assert weight is not None
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight


# ---------------------------------------------------------------- where a token stands


@pytest.mark.catches("position-restarts", "a-step-begins-its-text", "positions-count-from-one")
def test_positions_go_on_where_the_last_step_ended() -> None:
    decode = entry([7] * 6, 5, 1, [9, 4])
    assert listed(token_arrays([decode], 4)["positions"]) == [5]
    chunks = [entry([7] * 6, 2, 3, [9, 4]), entry([7] * 9, 0, 2, [3])]
    assert listed(token_arrays(chunks, 4)["positions"]) == [2, 3, 4, 0, 1]


@pytest.mark.catches("slot-is-position", "a-step-begins-its-text")
def test_a_token_goes_into_the_slot_that_its_block_table_says() -> None:
    """Blocks of 4: block 9 is slots 36 to 39, block 4 is slots 16 to 19."""
    whole = entry([7] * 6, 0, 6, [9, 4])
    slots = listed(token_arrays([whole], 4)["slot_mapping"])
    assert slots == [36, 37, 38, 39, 16, 17]
    decode = entry([7] * 8, 7, 1, [9, 4])
    assert listed(token_arrays([decode], 4)["slot_mapping"]) == [19]


def test_every_row_is_one_token_of_one_request() -> None:
    rng = random.Random(1)
    for _ in range(60):
        texts = random_texts(rng, rng.randint(1, 5))
        right: dict[str, list[int]] = {"input_ids": [], "positions": [], "slot_mapping": []}
        for known, start, query_len, table, _ in texts:
            slots = [4 * block + offset for block in table for offset in range(4)]
            own = slice(start, start + query_len)
            right["input_ids"] += known[own]
            right["positions"] += range(start, start + query_len)
            right["slot_mapping"] += slots[own]
        entries = [entry(*text) for text in texts]
        arrays = token_arrays(entries, 4)
        assert sorted(arrays) == sorted(right)
        lens = [(start, query_len) for _, start, query_len, _, _ in texts]
        for name in right:
            mine, expected = listed(arrays[name]), right[name]
            assert mine == expected, f"{name}, requests of (start, query_len) {lens}"


def test_no_token_is_written_to_the_slots_of_padding_and_no_two_to_one_slot() -> None:
    rng = random.Random(2)
    for _ in range(60):
        entries = [entry(*text) for text in random_texts(rng, 5)]
        slots = listed(token_arrays(entries, 4)["slot_mapping"])
        assert min(slots) >= 4, "slots 0 to 3 are block 0, which is nobody's"
        assert len(set(slots)) == len(slots), "two tokens in one slot"


def test_a_prompt_may_be_as_long_as_it_likes() -> None:
    known, table = [i % 50 for i in range(1500)], list(range(1, 376))
    arrays = token_arrays([entry(known, 0, 1500, table)], 4)
    assert listed(arrays["input_ids"]) == known
    assert listed(arrays["positions"]) == list(range(1500))
    assert listed(arrays["slot_mapping"]) == list(range(4, 1504))


def test_blocks_may_have_any_size() -> None:
    whole = entry([7] * 6, 1, 5, [2, 3, 1])
    assert listed(token_arrays([whole], 2)["slot_mapping"]) == [5, 6, 7, 2, 3]
    assert listed(token_arrays([whole], 16)["slot_mapping"]) == [33, 34, 35, 36, 37]


# ---------------------------------------------------------------- what a request brings


@pytest.mark.catches("context-without-this-step")
def test_the_context_counts_the_tokens_of_this_step() -> None:
    entries = [entry([7] * 6, 5, 1, [9, 4]), entry([7] * 9, 0, 3, [3])]
    arrays = request_arrays(entries, 16)
    assert listed(arrays["context_lens"]) == [6, 3]
    assert listed(arrays["query_lens"]) == [1, 3]


@pytest.mark.catches("last-row-of-its-own", "the-row-behind-the-last")
def test_the_last_row_of_a_request_is_a_row_of_the_step() -> None:
    entries = [entry([7] * 6, 5, 1, [9, 4]), entry([7] * 9, 0, 3, [3]), entry([7] * 2, 0, 2, [5])]
    assert listed(request_arrays(entries, 16)["last_rows"]) == [0, 3, 5]


def test_a_block_table_has_its_blocks_from_the_left_and_zeros_behind_them() -> None:
    entries = [entry([7] * 6, 5, 1, [9, 4]), entry([7] * 3, 0, 3, [3])]
    table = np.asarray(request_arrays(entries, 4)["block_table"])
    agree(table, [[9, 4, 0, 0], [3, 0, 0, 0]], "block_table")


def test_the_arrays_of_a_step_stay_as_they_are_when_the_next_are_made() -> None:
    first = request_arrays([entry([7] * 6, 5, 1, [9, 4])], 4)
    request_arrays([entry([7] * 3, 2, 1, [3, 2])], 4)
    agree(first["block_table"], [[9, 4, 0, 0]], "block_table")
    assert listed(first["context_lens"]) == [6]


def test_each_request_has_a_row_of_every_array() -> None:
    rng = random.Random(3)
    for _ in range(40):
        texts = random_texts(rng, rng.randint(1, 5))
        query_lens = [query_len for _, _, query_len, _, _ in texts]
        context_lens = [start + query_len for _, start, query_len, _, _ in texts]
        last_rows = [sum(query_lens[: i + 1]) - 1 for i in range(len(texts))]
        block_table = [[*table, *[0] * (16 - len(table))] for _, _, _, table, _ in texts]
        arrays = request_arrays([entry(*text) for text in texts], 16)
        assert sorted(arrays) == ["block_table", "context_lens", "last_rows", "query_lens"]
        assert listed(arrays["query_lens"]) == query_lens
        assert listed(arrays["context_lens"]) == context_lens
        assert listed(arrays["last_rows"]) == last_rows
        agree(arrays["block_table"], block_table, "block_table")


# ---------------------------------------------------------------- into the cache


class Rows:
    """T rows of qkv at random positions and slots, a cache full of marks, and what one kernel did.

    q (T, heads, D) as written, caches as rows (slots, kv_heads, D). Everything that the kernel only
    reads is read-only.
    """

    MARK = -77.0

    def __init__(
        self, seed: int, slots: Sequence[int], positions: Sequence[int], eps: float | None = None
    ) -> None:
        rng, rows = np.random.default_rng(seed), len(slots)
        self.slots, self.positions = list(slots), np.asarray(positions)
        qkv = rng.standard_normal((rows, TINY.q_size + 2 * TINY.kv_size), F32)
        parts = np.split(qkv.astype(float), [TINY.q_size, TINY.q_size + TINY.kv_size], axis=1)
        q, keys, self.raw_values = (part.reshape(rows, -1, TINY.head_dim) for part in parts)
        q_weight, k_weight = rng.uniform(0.2, 2, (2, TINY.head_dim)).astype(F32)
        if eps is not None:
            q, keys = norm(q, q_weight, eps), norm(keys, k_weight, eps)
        self.right_q, self.right_keys = turned(q, self.positions), turned(keys, self.positions)

        angles = np.outer(np.arange(64), ANGLES)
        shape = (LIMITS.num_blocks, LIMITS.block_size, TINY.num_kv_heads, TINY.head_dim)
        out, caches = np.zeros((rows, TINY.q_size), F32), np.full((2, *shape), self.MARK, F32)
        read = [frozen(qkv), *(frozen(np.array(x, np.int32)) for x in (positions, slots))]
        read += [frozen(np.cos(angles).astype(F32)), frozen(np.sin(angles).astype(F32))]
        if eps is None:
            k.rope_kv_write.function(out, *caches, *read)
        else:
            weights = frozen(q_weight), frozen(k_weight)
            k.rope_kv_write.function(out, *caches, *read, *weights, eps=eps)
        self.q = out.reshape(rows, -1, TINY.head_dim)
        self.keys, self.values = caches.reshape(2, -1, TINY.num_kv_heads, TINY.head_dim)


@pytest.mark.catches("slots-are-adjacent")
def test_no_slot_changes_but_those_of_the_steps_tokens() -> None:
    done = Rows(1, slots=[30, 9, 17, 60], positions=[2, 5, 0, 0])
    for cache in (done.keys, done.values):
        changed = np.flatnonzero((cache != Rows.MARK).any(axis=(1, 2)))
        assert changed.tolist() == [9, 17, 30, 60], "slots that were written"


@pytest.mark.catches("rotates-v")
def test_values_are_stored_as_they_come() -> None:
    done = Rows(2, slots=[30, 9, 17], positions=[2, 5, 0])
    same(done.values[done.slots], done.raw_values, "values of slots 30, 9 and 17")


@pytest.mark.catches("caches-k-before-rope")
def test_a_key_is_stored_turned_to_its_position() -> None:
    done = Rows(3, slots=[30, 31, 4], positions=[0, 1, 2])
    same(done.keys[done.slots], done.right_keys, "keys of slots 30, 31 and 4, positions 0, 1, 2")


@pytest.mark.catches("turned-by-its-row")
def test_how_far_a_token_is_turned_depends_on_its_position_and_not_on_its_row_or_slot() -> None:
    for slots, positions in (([8, 9, 10], [40, 40, 40]), ([50, 4, 28], [0, 63, 7])):
        done = Rows(4, slots, positions)
        same(done.q, done.right_q, f"queries at positions {positions}")
        same(done.keys[done.slots], done.right_keys, f"keys at positions {positions}")


def test_a_score_depends_on_the_distance_of_two_tokens_and_not_on_where_they_stand() -> None:
    """That is why a key may be turned once, when it is stored, and left alone for ever after."""
    scores = []
    for shift in (0, 1, 40):
        done = Rows(5, slots=[8, 20, 30], positions=[shift, shift + 3, shift + 9])
        query = done.q[2].reshape(TINY.num_kv_heads, -1, TINY.head_dim)
        scores.append(np.einsum("hgd,nhd->hgn", query, done.keys[done.slots]))
    same(scores[1], scores[0], "scores, all 1 further on")
    same(scores[2], scores[0], "scores, all 40 further on")


def test_padded_rows_write_to_no_slot_but_slot_0() -> None:
    """A graph of 4 runs a batch of 2: two rows are zeros, token 0 at position 0, slot 0. Nobody
    reads slot 0, so what stands there afterwards is all the same.
    """
    done = Rows(6, slots=[30, 9, 0, 0], positions=[2, 5, 0, 0])
    for cache in (done.keys, done.values):
        changed = np.flatnonzero((cache[1:] != Rows.MARK).any(axis=(1, 2))) + 1
        assert changed.tolist() == [9, 30], "slots that were written, but for slot 0"


@pytest.mark.catches("turned-before-the-norm")
def test_with_qk_norm_heads_are_normed_before_they_are_turned() -> None:
    done = Rows(7, slots=[30, 9, 17], positions=[2, 5, 0], eps=TINY.rms_norm_eps)
    same(done.q, done.right_q, "queries")
    same(done.keys[done.slots], done.right_keys, "keys in the cache")
    same(done.values[done.slots], done.raw_values, "values in the cache")


@pytest.mark.catches("eps-is-a-constant")
def test_the_norm_of_a_head_takes_the_eps_that_it_is_given() -> None:
    for eps in (1e-6, 0.5, 4.0):
        done = Rows(8, slots=[30, 9, 17], positions=[2, 5, 0], eps=eps)
        same(done.q, done.right_q, f"queries, eps {eps}")
        same(done.keys[done.slots], done.right_keys, f"keys in the cache, eps {eps}")


# ---------------------------------------------------------------- how much work it is


def pairs(*lens: tuple[int, int]) -> int:
    query_lens, context_lens = (
        frozen(np.array(numbers, np.int32)) for numbers in zip(*lens, strict=True)
    )
    return k.attention_pairs(query_lens, context_lens)


@pytest.mark.catches("every-step-is-a-square")
def test_a_decode_step_compares_its_query_with_each_key_once() -> None:
    assert [pairs((1, n)) for n in (1, 2, 512, 4096)] == [1, 2, 512, 4096]
    assert pairs((1, 10), (1, 20), (1, 30)) == 60


def test_pairs_are_counted_as_one_would_on_fingers() -> None:
    rng = random.Random(8)
    for _ in range(60):
        lens = [(rng.randint(0, 9), rng.randint(0, 20)) for _ in range(rng.randint(1, 5))]
        lens = [(query, before + query) for query, before in lens]
        counted = sum(
            key <= query
            for query_len, context in lens
            for query in range(context - query_len, context)
            for key in range(context)
        )
        assert pairs(*lens) == counted, f"(query_len, context_len): {lens}"


@pytest.mark.catches("every-step-is-a-square")
def test_a_text_written_token_by_token_takes_as_many_pairs_as_a_prompt_of_its_length() -> None:
    n = 300
    assert sum(pairs((1, i)) for i in range(1, n + 1)) == pairs((n, n)) == n * (n + 1) // 2


def test_pairs_of_a_long_prompt_are_more_than_32_bits_hold() -> None:
    n = 100_000
    assert pairs((n, n)) == n * (n + 1) // 2
    assert pairs((n, n), (1, n), (0, 0)) == n * (n + 1) // 2 + n


@pytest.mark.catches("loop-over-requests")
def test_pairs_of_many_requests_take_as_many_lines_of_python_as_those_of_few() -> None:
    def count(requests: int) -> int:
        lens = [(1, 9)] * requests
        numbers = [frozen(np.array(column, np.int32)) for column in zip(*lens, strict=True)]
        return lines_run(lambda: k.attention_pairs(*numbers))

    few, many = count(requests=2), count(requests=300)
    assert many == few, "lines of Python that ran for 300 requests, and for 2"


# ---------------------------------------------------------------- out of the cache


class Paged:
    """Requests with random keys and values in a cache that is NaN wherever nothing is stored."""

    def __init__(self, seed: int, lens: Sequence[tuple[int, int]]) -> None:
        """lens: (query_len, context_len) of each request."""
        rng = np.random.default_rng(seed)
        shape = (LIMITS.num_blocks, LIMITS.block_size, TINY.num_kv_heads, TINY.head_dim)
        self.caches = np.full((2, *shape), np.nan, F32)
        free = rng.permutation(np.arange(1, LIMITS.num_blocks)).tolist()
        self.table = np.zeros((len(lens), 16), np.int32)
        self.lens = list(lens)
        self.texts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        for request, (_, context) in enumerate(lens):
            q = rng.standard_normal((context, TINY.num_heads, TINY.head_dim), F32)
            keys, values = rng.standard_normal((2, context, TINY.num_kv_heads, TINY.head_dim), F32)
            self.texts.append((q, keys, values))
            for position in range(context):
                if position % LIMITS.block_size == 0:
                    self.table[request, position // LIMITS.block_size] = free.pop()
                block = self.table[request, position // LIMITS.block_size]
                place = block, position % LIMITS.block_size
                self.caches[0][place], self.caches[1][place] = keys[position], values[position]

    def given(self) -> list[np.ndarray]:
        """Caches, block table, query_lens and context_lens as the kernel gets them: read-only."""
        columns = [np.array(column, np.int32) for column in zip(*self.lens, strict=True)]
        return [frozen(array.copy()) for array in (*self.caches, self.table, *columns)]

    def attention(self, padded_rows: int = 0) -> np.ndarray:
        """(T + padded_rows, heads, D) of what the kernel writes over a row of marks."""
        rows = [q[len(q) - n :] for (n, _), (q, _, _) in zip(self.lens, self.texts, strict=True)]
        q = np.concatenate([*rows, np.zeros((padded_rows, TINY.num_heads, TINY.head_dim), F32)])
        q = frozen(q.reshape(len(q), -1))
        out = np.full_like(q, Rows.MARK)
        k.attention.function(out, q, *self.given())
        return out.reshape(len(q), TINY.num_heads, TINY.head_dim)

    def expected(self) -> np.ndarray:
        """All tokens of each text at once; then the rows that this step has."""
        rows = []
        for (query_len, _), (q, keys, values) in zip(self.lens, self.texts, strict=True):
            if query_len:
                rows.append(masked_attention(q, keys, values)[len(q) - query_len :])
        return np.concatenate(rows)


@pytest.mark.catches("blocks-are-neighbours")
def test_the_rows_of_a_request_are_found_through_its_table_in_order_of_position() -> None:
    paged = Paged(1, [(1, n) for n in (1, 4, 5, 8, 11)])
    for request, (_, keys, values) in enumerate(paged.texts):
        *caches, table, _, _ = paged.given()
        for cache, right in zip(caches, (keys, values), strict=True):
            rows = k._context_rows(cache, table[request], len(right))
            agree(rows, right, "rows (context_len, kv_heads, D)")


def test_rows_have_the_shape_of_the_cache_whatever_its_heads_and_blocks() -> None:
    rng = np.random.default_rng(9)
    for block_size, kv_heads in ((4, 1), (2, 8), (16, 3), (1, 2)):
        cache = frozen(rng.standard_normal((12, block_size, kv_heads, 6), F32))
        blocks = frozen(np.array([7, 3, 9, 0, 0, 0], np.int32))
        for context_len in (1, block_size, 2 * block_size + 1, 3 * block_size):
            rows = k._context_rows(cache, blocks, context_len)
            places = [divmod(position, block_size) for position in range(context_len)]
            right = np.array([cache[blocks[entry], offset] for entry, offset in places])
            agree(rows, right, f"{context_len} rows, blocks of {block_size}")


@pytest.mark.catches("table-is-read-whole")
def test_no_more_is_copied_than_the_blocks_that_the_context_reaches_into() -> None:
    cache = frozen(np.zeros((8, 16, 2, 8), F32))  # a block of 16 tokens is 1,024 bytes
    table = frozen(np.array([5, 3, 1, 2, *[0] * 4000], np.int32))  # so wide for one long context
    # four blocks are 4,096 bytes; a few copies of them, and lists of indices, are some 20,000
    peak = peak_bytes(partial(k._context_rows, cache, table, 60))
    assert peak < 100_000, "a row of the table is 4,004 entries, 4 MB of blocks"


@pytest.mark.catches("one-block-more")
def test_a_context_that_ends_with_its_block_does_not_reach_into_the_next() -> None:
    """The request may hold blocks for its next steps already."""
    cache = frozen(np.zeros((4, 16, 2, 512), F32))  # a block of 16 tokens is 65,536 bytes
    table = frozen(np.array([2, 3, 1, 0], np.int32))
    for blocks in (1, 2):
        held, n = frozen(np.where(np.arange(4) < blocks, table, 0)), 16 * blocks
        less = peak_bytes(partial(k._context_rows, cache, held, n - 1))
        full = peak_bytes(partial(k._context_rows, cache, table, n))
        # a copy of rows grows by a row, some 6%; another block is 50% or more
        assert full < 1.25 * less, f"bytes for {n} tokens, and for {n - 1} with no block ahead"


@pytest.mark.catches("does-not-see-itself", "a-position-is-a-count")
def test_a_token_sees_its_own_key() -> None:
    alone = Paged(3, [(1, 1)])
    own_value = np.repeat(alone.texts[0][2], 2, axis=1)  # each KV head serves two query heads
    same(alone.attention(), own_value, "the only token of a text")
    decode = Paged(4, [(1, 9)])
    same(decode.attention(), decode.expected(), "token 8 of a text")


@pytest.mark.catches("heads-take-turns")
def test_neighbouring_query_heads_share_a_kv_head() -> None:
    """Four query heads and two KV heads: heads 0 and 1 read the first, heads 2 and 3 the second."""
    paged = Paged(8, [(1, 5)])
    same(paged.attention(), paged.expected(), "heads of the last token of 5")


@pytest.mark.catches("sees-the-future")
def test_a_token_of_a_chunk_does_not_see_those_behind_it() -> None:
    paged = Paged(2, [(6, 6)])
    first = masked_attention(*(x[:3] for x in paged.texts[0]))
    same(paged.attention()[:3], first, "tokens 0 to 2 of a prompt of 6")


@pytest.mark.catches("chunk-begins-its-text")
def test_a_token_of_a_later_chunk_sees_all_chunks_before_it() -> None:
    paged = Paged(10, [(3, 8)])
    same(paged.attention(), paged.expected(), "tokens 5 to 7 of a prompt of 8")


def test_decodes_chunks_and_prompts_of_a_step_are_what_each_would_be_alone() -> None:
    rng = random.Random(5)
    for seed in range(25):
        contexts = [rng.randint(1, 20) for _ in range(rng.randint(1, 5))]
        paged = Paged(seed, [(rng.choice([1, c, rng.randint(1, c)]), c) for c in contexts])
        same(paged.attention(), paged.expected(), f"(query_len, context_len): {paged.lens}")


def test_a_request_sees_its_own_keys_only() -> None:
    paged = Paged(6, [(1, 7), (3, 9), (1, 1)])
    before = paged.attention()
    others = [block for block in range(LIMITS.num_blocks) if block not in paged.table[1]]
    paged.caches[:, others] = 1e6
    agree(paged.attention()[1:4], before[1:4], "rows of request 1")


def test_rows_and_requests_of_padding_are_passed_over() -> None:
    paged = Paged(7, [(1, 7), (2, 5), (0, 0), (0, 0)])
    out = paged.attention(padded_rows=3)
    same(out[:3], paged.expected(), "rows before the padding")
    agree(out[3:], np.full_like(out[3:], Rows.MARK), "rows of padding")


def test_a_request_without_a_token_in_this_step_ends_nothing() -> None:
    paged = Paged(8, [(1, 7), (0, 0), (2, 5), (0, 0), (1, 3)])
    same(
        paged.attention(),
        paged.expected(),
        "(query_len, context_len) of 1, 7 · 0 · 2, 5 · 0 · 1, 3",
    )


# ---------------------------------------------------------------- the whole model


class Cached:
    """The engine's model with one KV cache: `step(entries)` gives the logits of each row."""

    def __init__(self, weights: Weights) -> None:
        self.device = Device(load_spec("h200"), memory_bytes=16 * 2**20)
        cache = KVCache.allocate(self.device, TINY, LIMITS.num_blocks, 4, "float32")
        self.model = Model(self.device, TINY, weights, cache)

    def step(self, *entries: ScheduledRequest) -> np.ndarray:
        arrays = step_arrays(ScheduledBatch(entries), LIMITS)
        rows = len(arrays["input_ids"])
        arrays["last_rows"] = np.arange(rows, dtype=np.int32)  # logits of every token
        device = self.device
        inputs = StepInputs(**{name: device.upload(array) for name, array in arrays.items()})
        logits = device.empty((rows, TINY.vocab_size))
        device.free(self.model.head(self.model.body(inputs), inputs.last_rows, logits))
        return device.read(logits)


def test_decoding_with_a_cache_gives_what_computing_everything_again_gives() -> None:
    weights, rng = random_weights(TINY, 1), random.Random(9)
    text, table = [rng.randrange(50) for _ in range(14)], [7, 2, 30, 11]
    right = Uncached(weights).logits(text)
    model = Cached(weights)
    rows = [model.step(entry(text, 0, 5, table))]
    for position in range(5, 14):
        rows.append(model.step(entry(text, position, 1, table, generated=position - 4)))
    same(np.concatenate(rows), right, "logits after each token")


def test_a_prompt_in_chunks_gives_what_the_whole_prompt_gives() -> None:
    weights, rng = random_weights(TINY, 2), random.Random(10)
    text, table = [rng.randrange(50) for _ in range(12)], [5, 31, 2]
    right = Uncached(weights).logits(text)
    for cuts in ([12], [4, 8], [1, 10, 1], [5, 4, 3]):
        model, start = Cached(weights), 0
        for length in cuts:
            mine = model.step(entry(text, start, length, table))
            same(mine, right[start : start + length], f"logits, chunks of {cuts}")
            start += length


def test_requests_side_by_side_do_not_touch_each_other() -> None:
    weights, rng = random_weights(TINY, 3), random.Random(11)
    texts = [[rng.randrange(50) for _ in range(n)] for n in (9, 6, 3)]
    tables = [[3, 9, 1], [8, 2], [6]]
    right = [Uncached(weights).logits(text) for text in texts]
    model, done = Cached(weights), [0, 0, 0]
    for lengths in ((4, 1, 3), (1, 4, 0), (4, 1, 0)):
        sizes = zip(texts, done, lengths, tables, strict=True)
        logits = model.step(*(entry(t, start, n, table) for t, start, n, table in sizes if n))
        row = 0
        for request, length in enumerate(lengths):
            start = done[request]
            expected = right[request][start : start + length]
            same(logits[row : row + length], expected, f"logits of request {request}")
            row, done[request] = row + length, start + length


def test_the_engine_writes_with_your_cache_what_it_should() -> None:
    """Three prompts of the shipped checkpoint at once, in chunks, in graphs with padded rows."""
    golden = json.loads((SHIPPED / "greedy.json").read_text(encoding="utf-8"))["prompts"][:3]
    tiny, new = open_checkpoint(SHIPPED), 10
    limits = SchedulerLimits(3, 3, num_blocks=40, block_size=4, max_model_len=64)
    dispatcher = GraphDispatcher("FULL", [4], limits.max_num_seqs)
    runner = SimRunner(Device(load_spec("h200")), tiny.config, tiny.weights, limits, dispatcher)
    runner.capture()
    requests = [Request(str(i), text["prompt_ids"], new) for i, text in enumerate(golden)]
    done = Engine(runner, limits, dispatcher).run(requests)
    written = {completion.request_id: list(completion.tokens) for completion in done}
    assert written == {str(i): text["ids"][:new] for i, text in enumerate(golden)}
