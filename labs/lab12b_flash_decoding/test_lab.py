"""Lab 12b: flash-decoding. What you write runs in Triton's interpreter and is held against a
softmax in float64, key by key, and to a list of everything that it reads and writes; then it is
compiled.

Cache rows that hold no key of a request are NaN: nobody may read them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from labs.support.compared import assert_near, assert_same, unchanged
from labs.support.compiled import Kernel, must_compile
from labs.support.watched import Watch
from labs.support.watching import shuffled, undefined, watching
from mini_engine.cuda.kernels import attention
from mini_engine.cuda.kernels.paged import LOWEST, Heads, cache_rows, combine, online_softmax

NAN = float("nan")
BF16, F32 = torch.bfloat16, torch.float32
SHAPE = Heads(16, 8, 128, 16).constants | {"PADDED_GROUP": 16, "TILE": attention.TILE}
MANY = SHAPE | {"SPLITS": 33, "PADDED_SPLITS": 64}
COMPILED = Kernel("mini_engine.cuda.kernels.attention", "decode_split_kernel", tuple(MANY.items()))


@pytest.fixture(autouse=True)
def _a_gpu_promises_less() -> Iterator[None]:
    """Nothing in lanes that a load without `other=` does not read."""
    with undefined():
        yield


def assert_close(got: Tensor, wanted: Tensor, what: str, slack: int = 1) -> None:
    """Up to the order of float32 sums; in bf16 up to one rounding of the result and one of each
    weight, which tensor cores take in bf16. `slack`: how large the terms of the sum are."""
    rtol, atol = {F32: (2e-5, 2e-6 * slack), BF16: (2**-7, 2**-7)}[got.dtype]
    assert_near(got, wanted, what, rtol=rtol, atol=atol)


# ---------------------------------------------------------------- the block table


@triton.jit
def rows_kernel(out, table, count: tl.constexpr, size: tl.constexpr):
    token = tl.arange(0, 32)
    rows = cache_rows(table, token, token < count, size)
    tl.store(out + token, rows, mask=token < count)


@pytest.mark.catches("the-cache-is-in-order", "rows-fit-into-int32")
def test_a_token_lies_in_its_block_of_the_table_at_its_place_in_the_block() -> None:
    rng = random.Random(1)
    for block_size, tokens in ((5, 13), (16, 32), (1, 7), (7, 1)):
        blocks = [rng.randrange(1, 2**30) for _ in range(-(-tokens // block_size))]
        table = torch.tensor([*blocks, *[-1] * 32], dtype=torch.int32)
        out = torch.full((32,), -7, dtype=torch.int64)
        rows_kernel[(1,)](out, table, tokens, block_size)
        wanted = [blocks[t // block_size] * block_size + t % block_size for t in range(tokens)]
        rows = out[:tokens].tolist()
        assert rows == wanted, f"of {tokens} tokens in blocks of {block_size}: {blocks}"


@pytest.mark.catches("the-table-has-no-end")
def test_of_the_table_only_entries_of_tokens_that_are_inside_are_read() -> None:
    for block_size, tokens in ((5, 13), (16, 31), (1, 7)):
        table, out = torch.arange(40, dtype=torch.int32), torch.zeros(32, dtype=torch.int64)
        with watching(table=table, out=out) as watch, unchanged(table=table):
            rows_kernel[(1,)](out, table, tokens, block_size)
        watch.nothing_outside()
        last, needed = max(watch.elements("load", "table")), -(-tokens // block_size)
        assert last < needed, f"entry {last} is read: {tokens} tokens have {needed} blocks"


# ---------------------------------------------------------------- the running softmax


@triton.jit
def walk_kernel(out, stats, scores, valid, values, count: tl.constexpr):
    """Walk over tiles of 16 keys, for 16 rows and 16 columns of values."""
    i = tl.arange(0, 16)
    at = i[:, None] * 16 + i[None, :]
    m = tl.full((16,), LOWEST, tl.float32)
    l = tl.zeros((16,), tl.float32)
    acc = tl.zeros((16, 16), tl.float32)
    for tile in range(count):
        where = tile * 256 + at
        counts = tl.load(valid + where) != 0
        m, l, acc = online_softmax(
            tl.load(scores + where), counts, tl.load(values + where), m, l, acc
        )
    tl.store(out + at, acc)
    tl.store(stats + i, m)
    tl.store(stats + 16 + i, l)


def walk(scores: Tensor, valid: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """scores, valid (tiles, 16, 16): of each row to each key; values (tiles, 16, 16).

    Returns acc (16, 16), m (16,), l (16,) after the last tile.
    """
    out, stats = torch.full((16, 16), NAN), torch.full((2, 16), NAN)
    walk_kernel[(1,)](out, stats, scores, valid.to(torch.int8), values, len(scores))
    return out, stats[0], stats[1]


def whole_softmax(scores: Tensor, valid: Tensor, values: Tensor) -> Tensor:
    """(rows, columns) in float64, all keys at once."""
    flat = scores.double().masked_fill(~valid, -torch.inf).transpose(0, 1).flatten(1)
    return flat.softmax(dim=1) @ values.double().flatten(0, 1)


def tiles(count: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(count)
    scores = torch.randn(count, 16, 16) * 3
    return scores, torch.ones(count, 16, 16, dtype=torch.bool), torch.randn(count, 16, 16)


@pytest.mark.catches("no-rescale")
@pytest.mark.parametrize("order", ["rising", "falling", "mixed"])
def test_a_softmax_in_tiles_is_the_softmax_of_all(order: str) -> None:
    scores, valid, values = tiles(4)
    height = {"rising": [0, 4, 8, 12], "falling": [12, 8, 4, 0], "mixed": [0, 9, -9, 5]}[order]
    scores += torch.tensor(height)[:, None, None]
    acc, _, l = walk(scores, valid, values)
    assert_close(acc / l[:, None], whole_softmax(scores, valid, values), f"softmax, {order},")


@pytest.mark.catches("no-rescale")
def test_m_and_l_are_those_of_all_keys_so_far() -> None:
    scores, valid, values = tiles(3)
    scores += torch.tensor([0.0, 6.0, 3.0])[:, None, None]
    _, m, l = walk(scores, valid, values)
    highest = scores.double().amax(dim=(0, 2))
    assert_close(m, highest, "m")
    wanted = (scores.double() - highest[:, None]).exp().sum(dim=(0, 2))
    assert_close(l, wanted, "l", slack=10)


@pytest.mark.catches("masked-keys-weigh")
def test_keys_that_do_not_count_weigh_nothing_whatever_their_score() -> None:
    scores, valid, values = tiles(3)
    valid = torch.rand(3, 16, 16) < 0.5
    valid[0, :, 3], valid[1] = True, False  # a whole tile that counts for nobody
    for hidden in (0.0, 30.0):  # zeros, as a masked load leaves them; and higher than all others
        masked = torch.where(valid, scores, hidden)
        acc, _, l = walk(masked, valid, values)
        wanted = whole_softmax(masked, valid, values)
        assert_close(acc / l[:, None], wanted, f"softmax, masked scores {hidden:g},")


@pytest.mark.catches("a-hidden-score-may-be-the-maximum")
def test_a_score_that_does_not_count_is_no_maximum_however_high_it_is() -> None:
    scores, valid, values = tiles(2)
    valid = torch.rand(2, 16, 16) < 0.5
    valid[0, :, 3] = True
    masked = torch.where(valid, scores, 1e4)
    acc, m, l = walk(masked, valid, values)
    highest = torch.where(valid, scores, -1e30).amax(dim=(0, 2))
    assert_close(m, highest.double(), "m, masked scores 10000,")
    assert_close(acc / l[:, None], whole_softmax(masked, valid, values), "softmax")


@pytest.mark.catches("a-hidden-tile-weighs")
def test_a_first_tile_that_counts_for_nobody_leaves_the_sums_at_zero() -> None:
    """LOWEST - LOWEST is 0, and exp(0) is 1: a maximum alone does not hide it."""
    scores, valid, values = tiles(2)
    valid[0] = False
    acc, _, l = walk(scores[:1], valid[:1], values[:1])
    assert_same(l, torch.zeros(16), "l")
    assert_same(acc, torch.zeros(16, 16), "acc")
    acc, _, l = walk(scores, valid, values)
    assert_close(acc / l[:, None], whole_softmax(scores, valid, values), "softmax after it")


@pytest.mark.catches("sums-are-as-narrow-as-values")
def test_sums_of_bf16_values_are_kept_in_float32() -> None:
    """Equal scores give each key the weight 1, and whole numbers up to 256 are exact in bf16. Their
    sums are exact in float32 and need more bits than bf16 has."""
    scores, valid, values = tiles(5)
    whole = (values * 100).round().clamp(-256, 256)
    acc, _, l = walk(torch.zeros_like(scores), valid, whole.to(BF16))
    assert_same(l, torch.full((16,), 80.0), "l of 80 keys of one score")
    assert_same(acc, whole.sum(dim=(0, 1)).expand(16, 16), "acc of 80 keys of one score")


def test_products_of_float32_keep_all_its_bits() -> None:
    scores, valid, values = tiles(2)
    with watching() as watch:
        walk(scores, valid, values)
    watch.products_keep_float32()


# ---------------------------------------------------------------- the partials


@triton.jit
def combine_kernel(out, sums, stats, splits: tl.constexpr, padded: tl.constexpr):
    head = tl.program_id(0)
    row = combine(sums, stats, head, 16, splits, padded)
    tl.store(out + head * 16 + tl.arange(0, 16), row)


def partials_of(scores: list[Tensor], values: list[Tensor]) -> tuple[Tensor, Tensor]:
    """What the splits of one head leave: sums (splits, 16), stats (splits, 2)."""
    sums, stats = torch.zeros(len(scores), 16), torch.zeros(len(scores), 2)
    for s, (score, value) in enumerate(zip(scores, values, strict=True)):
        m = score.max() if len(score) else torch.tensor(-1e30)
        weights = (score - m).exp()
        sums[s], stats[s, 0], stats[s, 1] = weights @ value, m, weights.sum()
    return sums, stats


def combined(keys: list[list[int]], level: float = 0) -> tuple[Tensor, Tensor]:
    """keys[head][split]: how many. (what `combine` says, the softmax in float64), (heads, 16).
    level: about how high the scores are."""
    torch.manual_seed(len(keys[0]))
    splits = len(keys[0])
    sums = torch.full((len(keys) + 1, splits, 16), NAN)  # behind the last head: nobody's
    stats = torch.full((len(keys) + 1, splits, 2), NAN)
    wanted = torch.zeros(len(keys), 16, dtype=torch.float64)
    for h, counts in enumerate(keys):
        scores = [torch.randn(n) + 5 * s % 7 + level for s, n in enumerate(counts)]
        values = [torch.randn(n, 16) for n in counts]
        sums[h], stats[h] = partials_of(scores, values)
        if sum(counts):
            wanted[h] = torch.cat(scores).double().softmax(0) @ torch.cat(values).double()
    out = torch.full((len(keys), 16), NAN)
    with unchanged(sums=sums, stats=stats):
        combine_kernel[(len(keys),)](out, sums, stats, splits, triton.next_power_of_2(splits))
    return out, wanted


@pytest.mark.catches("parts-are-averaged")
@pytest.mark.parametrize("splits", [1, 2, 4])
def test_partials_combine_to_the_softmax_of_all_keys(splits: int) -> None:
    rng = random.Random(splits)
    out, wanted = combined([[rng.randint(1, 40) for _ in range(splits)] for _ in range(3)])
    assert_close(out, wanted, "the combined row", slack=4)


@pytest.mark.catches("an-empty-split-is-nan")
def test_a_split_without_keys_adds_nothing() -> None:
    for keys in ([[7, 0, 3, 0], [0, 0, 9, 0]], [[7, 2, 3], [1, 0, 6]], [[1, 0, 0, 0, 5]]):
        out, wanted = combined(keys)
        assert_close(out, wanted, f"the combined row of partials with {keys} keys", slack=4)


@pytest.mark.catches("a-request-without-keys-is-nan")
def test_a_head_without_any_key_gets_zeros() -> None:
    out, wanted = combined([[0, 0, 0], [4, 0, 2]])
    assert_close(out, wanted, "the combined row", slack=4)


@pytest.mark.catches("nobodys-partial-has-score-0")
@pytest.mark.parametrize("level", [-200, 200])
def test_however_high_the_scores_are_only_their_differences_count(level: int) -> None:
    """exp(200) is more than a float32 can hold, exp(-200) is less."""
    out, wanted = combined([[3, 8, 5], [0, 4, 0]], level)
    assert_close(out, wanted, f"the combined row, scores about {level},", slack=4)


@pytest.mark.catches("partials-may-be-in-l1")
def test_the_partials_of_a_head_are_read_past_l1_and_no_other_heads() -> None:
    splits, heads = 3, 2
    sums, stats = torch.zeros(heads + 1, splits, 16), torch.zeros(heads + 1, splits, 2)
    out = torch.zeros(heads, 16)
    with watching(sums=sums, stats=stats, out=out) as watch:
        combine_kernel[(heads,)](out, sums, stats, splits, 4)
    watch.nothing_outside()
    watch.reads_past_l1("sums", "stats")
    for program in watch.programs:
        head = program.index[0]
        for name, size in (("sums", splits * 16), ("stats", splits * 2)):
            read = set(watch.elements("load", name, program.events))
            own = set(range(head * size, head * size + size))
            assert read <= own, f"{len(read - own)} numbers of {name} are not of head {head}"


# ---------------------------------------------------------------- how many splits


@pytest.mark.catches("as-many-splits-as-there-is-room")
def test_splits_fill_the_gpu_and_no_split_is_without_a_tile() -> None:
    rng = random.Random(9)
    for _ in range(300):
        context, reqs = (
            rng.choice([0, 1, 32, 33, rng.randint(1, 6000)]),
            rng.choice([1, 2, 7, 64, 300]),
        )
        kv_heads, programs = rng.choice([1, 2, 8]), rng.choice([0, 1, 108, 264, 1000])
        splits = attention.num_splits(context, reqs, kv_heads, programs)
        most = max(1, min(attention.MAX_SPLITS, -(-context // attention.TILE)))
        case = f"context {context}, {reqs} requests, {kv_heads} KV heads, {programs} programs"
        assert 1 <= splits <= most, f"{splits} splits, expected 1 to {most}: {case}"
        enough = splits * reqs * kv_heads >= programs
        assert enough or splits == most, f"{splits} splits are too few: {case}"
        fewer = (splits - 1) * reqs * kv_heads >= programs
        assert splits == 1 or not fewer, f"{splits - 1} splits are enough: {case}"


# ---------------------------------------------------------------- a batch in a paged cache


@dataclass(frozen=True)
class Batch:
    """Requests in a paged cache, scattered. Rows without a key are NaN, unused table entries 0."""

    heads: Heads
    q: Tensor  # (R, q)
    k_cache: Tensor  # (num_blocks, block_size, kv_heads, D)
    v_cache: Tensor
    table: Tensor  # (R, max_blocks): the left part of a wider one
    contexts: Tensor  # (R,)

    @property
    def inputs(self) -> dict[str, Tensor]:
        """What is only read, by its name in the kernel; the table up to its last row's end."""
        rows, stride = self.table.shape[0], self.table.stride(0)
        size = (rows - 1) * stride + self.table.shape[1]
        whole = self.table.as_strided((size,), (1,))
        named = {"q": self.q, "k_cache": self.k_cache, "v_cache": self.v_cache}
        return named | {"block_table": whole, "context_lens": self.contexts}

    def tokens_of(self, request: int, split: int, splits: int) -> list[int]:
        """The positions that a split owns: its tiles, as far as the context goes."""
        tile, context = attention.TILE, int(self.contexts[request])
        return [t for t in range(context) if t // tile % splits == split]

    def slots_of(self, request: int, tokens: list[int]) -> list[int]:
        """The rows of the cache in which they lie."""
        size, row = self.heads.block_size, self.table[request]
        return [int(row[t // size]) * size + t % size for t in tokens]


def batch(
    contexts: list[int], heads: Heads, dtype: torch.dtype = F32, *, seed: int = 0, sharp: float = 1
) -> Batch:
    """`seed` decides where blocks lie, and nothing else. `sharp` scales the queries."""
    torch.manual_seed(sum(contexts) + heads.head_dim)
    size, dim = heads.block_size, heads.head_dim
    q = (torch.randn(len(contexts), heads.num_heads * dim) * sharp).to(dtype)
    rows = [torch.randn(2, n, heads.num_kv_heads, dim).to(dtype) for n in contexts]
    needed = [-(-n // size) for n in contexts]
    spare = -(-2 * attention.TILE // size)
    blocks = random.Random(seed).sample(range(1, sum(needed) + spare + 1), sum(needed))
    shape = (2, 1 + sum(needed) + 2 * spare + max(needed), size, heads.num_kv_heads, dim)
    caches = torch.full(shape, NAN, dtype=dtype)
    table = torch.zeros(len(contexts) + 1, max(needed) + spare, dtype=torch.int32)
    for r, n in enumerate(contexts):
        own = [blocks.pop() for _ in range(needed[r])]
        table[r, : len(own)] = torch.tensor(own)
        slots = [own[t // size] * size + t % size for t in range(n)]
        for cache, what in zip(caches, rows[r], strict=True):
            cache.flatten(0, 1)[slots] = what
    wide = table[: len(contexts), : max(needed) + spare // 2 + 1]
    lens = torch.tensor(contexts, dtype=torch.int32)
    return Batch(heads, q, caches[0].clone(), caches[1].clone(), wide, lens)


def decode(b: Batch, splits: int) -> Tensor:
    """What the kernel makes of it; fails if it changed its inputs or left a counter."""
    out = torch.full_like(b.q, NAN)
    counters = torch.zeros(len(b.q), b.heads.num_kv_heads, dtype=torch.int32)
    with unchanged(**b.inputs):
        attention.decode_attention(
            out, counters, b.q, b.k_cache, b.v_cache, b.table, b.contexts, splits
        )
    left = counters.flatten().tolist()
    assert not any(left), f"the counters must be left at zero, they are {left}"
    return out


@dataclass(frozen=True, repr=False)
class Watched:
    """A launch, and what it left beside `out`."""

    watch: Watch
    sums: Tensor
    stats: Tensor


def watched(
    b: Batch, splits: int, monkeypatch: pytest.MonkeyPatch, *, combining: bool = True
) -> Watched:
    """Watches a launch, with or without the combine at its end. Partials are NaN before. What would
    be written beyond all tensors is left out, so that it fails a test and does not end the process.
    """
    shape = (len(b.q), b.heads.num_heads, splits)
    sums, stats = torch.full((*shape, b.heads.head_dim), NAN), torch.full((*shape, 2), NAN)
    monkeypatch.setattr(attention, "new_partials", lambda *_: (sums, stats))
    if not combining:
        monkeypatch.setattr(attention, "combine_if_last", lambda *_, **__: None)
    out = torch.full_like(b.q, NAN)
    counters = torch.zeros(len(b.q), b.heads.num_kv_heads, dtype=torch.int32)
    made = {"sums": sums, "stats": stats, "counters": counters, "out": out}
    with watching(attention, imagined=True, **b.inputs, **made) as watch, unchanged(**b.inputs):
        attention.decode_attention(
            out, counters, b.q, b.k_cache, b.v_cache, b.table, b.contexts, splits
        )
    return Watched(watch, sums, stats)


def exact(b: Batch) -> Tensor:
    """Key by key through the block table, in float64."""
    size, dim = b.heads.block_size, b.heads.head_dim
    out = torch.zeros(b.q.shape, dtype=torch.float64).unflatten(1, (-1, dim))
    queries = b.q.double().unflatten(1, (-1, dim))
    for r, n in enumerate(b.contexts.tolist()):
        slots = [int(b.table[r, t // size]) * size + t % size for t in range(n)]
        keys, values = (c.flatten(0, 1)[slots].double() for c in (b.k_cache, b.v_cache))
        for h in range(b.heads.num_heads):
            kv = h // b.heads.group_size
            scores = keys[:, kv] @ queries[r, h] / dim**0.5
            out[r, h] = scores.softmax(0) @ values[:, kv]
    return out.flatten(1)


# one program: which keys, and what it leaves. The combine at its end is left out here


@pytest.mark.catches("keys-beyond-the-context")
def test_of_the_last_tile_only_keys_of_the_context_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for contexts in ([5, 31], [33, 32]):
        left = watched(batch(contexts, Heads(2, 1, 16, 5)), 2, monkeypatch, combining=False)
        stored = left.sums.flatten()[left.watch.elements("store", "sums")]
        lost = int(stored.isnan().sum())
        assert lost == 0, f"contexts {contexts}: rows that hold no key were read, NaN came of it"


@pytest.mark.catches("split-zero-does-it-all", "one-tile-a-split", "shares-are-neighbours")
def test_each_split_reads_the_keys_and_values_of_its_own_tiles_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tiles split, split + SPLITS, ...: the number of splits is frozen in a graph, the context
    grows, and all splits should have the same to do."""
    heads, splits = Heads(4, 2, 16, 5), 3
    b = batch([5 * attention.TILE + 3, 9, 0], heads)
    watch = watched(b, splits, monkeypatch, combining=False).watch
    for program in watch.programs:
        request, kv_head, split = program.index
        tokens = b.tokens_of(request, split, splits)
        slots = b.slots_of(request, tokens)
        for name in ("k_cache", "v_cache"):
            read = np.array(watch.elements("load", name, program.events), int) // heads.head_dim
            times = {
                int(row): int(n)
                for row, n in zip(*np.unique(read, return_counts=True), strict=True)
            }
            wanted = {slot * heads.num_kv_heads + kv_head: heads.head_dim for slot in slots}
            which = f"program (request {request}, KV head {kv_head}, split {split})"
            rest = "are not those of its tiles"
            assert times.keys() == wanted.keys(), f"{which} reads rows of {name} that {rest}"
            assert times == wanted, f"{which} reads numbers of {name} more than once"


@pytest.mark.catches("unmasked-queries")
@pytest.mark.parametrize("heads", [Heads(4, 2, 16, 4), Heads(3, 3, 16, 4)])
def test_a_program_reads_the_queries_of_its_group_once_and_nothing_beside_the_tensors(
    heads: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = batch([40, 3], heads)
    watch = watched(b, 2, monkeypatch, combining=False).watch
    watch.nothing_outside()
    group = heads.group_size * heads.head_dim
    for program in watch.programs:
        request, kv_head, _ = program.index
        first = (request * heads.num_kv_heads + kv_head) * group
        read = sorted(watch.elements("load", "q", program.events))
        own = list(range(first, first + group))
        beyond = len(set(read) - set(own))
        assert not beyond, f"{beyond} numbers of q are read that belong to another group"
        assert len(read) <= len(own), "numbers of q are read more than once by a program"


@pytest.mark.catches("the-table-has-no-end")
def test_no_block_is_looked_up_beyond_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    b = batch([33, 3], Heads(2, 1, 16, 5))
    watch = watched(b, 2, monkeypatch, combining=False).watch
    looked_up = set(watch.elements("load", "block_table"))
    needed = [-(-int(n) // b.heads.block_size) for n in b.contexts]
    own = {r * b.table.stride(0) + i for r, n in enumerate(needed) for i in range(n)}
    beyond = sorted(looked_up - own)
    assert not beyond, f"entries {beyond} of the block table hold no block of these requests"


@pytest.mark.catches("an-idle-split-may-return")
def test_a_partial_is_that_of_its_tiles_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """m, l and acc of a split without tiles: LOWEST, 0 and zeros."""
    heads, splits = Heads(4, 2, 16, 5), 3
    b = batch([3 * attention.TILE + 7, attention.TILE, 0], heads)
    left = watched(b, splits, monkeypatch, combining=False)
    queries = b.q.double().unflatten(1, (-1, heads.head_dim)) / heads.head_dim**0.5
    for r, h, s in np.ndindex(*left.stats.shape[:3]):
        slots, kv = b.slots_of(r, b.tokens_of(r, s, splits)), h // heads.group_size
        keys, values = (c.flatten(0, 1)[slots, kv].double() for c in (b.k_cache, b.v_cache))
        scores = keys @ queries[r, h]
        m = scores.max() if slots else torch.tensor(-1e30).double()
        weights = (scores - m).exp()
        which = f"of request {r}, head {h}, split {s}"
        wanted = torch.stack([m, weights.sum()])
        assert_close(left.stats[r, h, s], wanted, f"(m, l) {which}: stats", slack=10)
        assert_close(left.sums[r, h, s], weights @ values, f"acc {which}: sums", slack=10)


@pytest.mark.catches("rounds-the-scaled-query")
def test_scores_of_bf16_are_scaled_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that is scaled first is rounded again, and a score of 50 is then off by 0.1."""
    heads, splits = Heads(4, 2, 32, 5), 2
    b = batch([40, 3], heads, BF16, sharp=8)
    left = watched(b, splits, monkeypatch, combining=False)
    queries = b.q.double().unflatten(1, (-1, heads.head_dim)) / heads.head_dim**0.5
    for r, h, s in np.ndindex(*left.stats.shape[:3]):
        slots, kv = b.slots_of(r, b.tokens_of(r, s, splits)), h // heads.group_size
        if slots:
            highest = (b.k_cache.flatten(0, 1)[slots, kv].double() @ queries[r, h]).max()
            m = left.stats[r, h, s, 0]
            assert_close(m, highest, f"m of request {r}, head {h}, split {s}", slack=10)


@pytest.mark.catches("reads-before-the-wait")
def test_what_the_step_writes_is_read_after_the_wait_and_the_release_comes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = watched(batch([40, 0], Heads(4, 2, 16, 5)), 2, monkeypatch, combining=False).watch
    watch.releases_first_and_waits_once()
    watch.reads_and_writes_below_the_wait("q", "k_cache", "v_cache", "block_table", "context_lens")
    watch.reads_and_writes_below_the_wait("sums", "stats")
    watch.reads_past_l1("q", "context_lens")
    watch.products_keep_float32()


# ---------------------------------------------------------------- the whole kernel


def test_each_head_is_combined_once_and_nothing_is_written_beside_the_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = watched(batch([40, 3], Heads(4, 2, 16, 5)), 2, monkeypatch).watch
    watch.nothing_outside()
    watch.written_once("sums", "out")


@pytest.mark.catches("query-heads-share-nothing")
@pytest.mark.parametrize("heads", [Heads(4, 2, 16, 4), Heads(6, 2, 16, 4), Heads(3, 3, 16, 4)])
def test_with_one_key_each_head_gets_the_value_of_its_own_kv_head(heads: Heads) -> None:
    b = batch([1, 1], heads)
    value = b.v_cache[b.table[:, 0].long(), 0]  # (R, kv_heads, D)
    wanted = value.repeat_interleave(heads.group_size, dim=1).flatten(1)
    assert_close(decode(b, 1), wanted.double(), "out")


@pytest.mark.catches("scaled-twice")
def test_scores_are_scaled_once() -> None:
    b = batch([24], Heads(2, 2, 64, 8), sharp=4)
    assert_close(decode(b, 1), exact(b), "out", slack=4)


def test_scores_are_scaled_by_what_the_launch_says(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = attention.decode_split_kernel

    class Doubled:
        def __getitem__(self, grid: Any) -> Any:
            return lambda *given, scale, **named: kernel[grid](*given, scale=2 * scale, **named)

    b = batch([24], Heads(2, 2, 64, 8))
    monkeypatch.setattr(attention, "decode_split_kernel", Doubled())
    assert_close(decode(b, 1), exact(replace(b, q=2 * b.q)), "out", slack=4)


@pytest.mark.catches("the-cache-is-in-order")
def test_where_the_blocks_lie_changes_nothing() -> None:
    one, other = (batch([40, 9], Heads(2, 1, 16, 5), seed=seed) for seed in (1, 2))
    assert not torch.equal(one.table, other.table)
    assert_close(decode(one, 2), exact(one), "out")
    assert_same(decode(other, 2), decode(one, 2), "out with the blocks elsewhere")


@pytest.mark.catches("one-tile-a-split")
def test_a_context_longer_than_its_splits_is_read_to_its_end() -> None:
    """The number of splits is frozen in a graph, the context grows."""
    b = batch([4 * attention.TILE + 3], Heads(2, 1, 16, 16))
    for splits in (1, 2, 3):
        assert_close(decode(b, splits), exact(b), f"out, {splits} splits,")


@pytest.mark.catches("an-empty-split-is-nan", "an-idle-split-may-return")
def test_more_splits_than_tiles_leave_the_rest_idle() -> None:
    b = batch([attention.TILE + 1, 1], Heads(2, 1, 16, 4))
    assert_close(decode(b, 5), exact(b), "out")


@pytest.mark.catches("a-request-without-keys-is-nan")
def test_a_padded_row_gets_zeros_and_changes_no_other() -> None:
    b = batch([20, 0, 35], Heads(2, 1, 16, 5))
    out = decode(b, 2)
    assert_same(out[1], torch.zeros_like(out[1]), "out of the padded row")
    for row in (0, 2):
        alone = replace(b, q=b.q[[row]], table=b.table[row : row + 1], contexts=b.contexts[[row]])
        assert_same(decode(alone, 2)[0], out[row], f"out of row {row} without the others")


@pytest.mark.catches("one-counter-for-all-kv-heads")
def test_in_whatever_order_the_programs_run_the_result_has_the_same_bits() -> None:
    """Each KV head's programs count for themselves, and the last of them combines."""
    b = batch([70, 2], Heads(4, 2, 16, 5))
    in_order = decode(b, 3)
    assert_close(in_order, exact(b), "out")
    for seed in range(3):
        with shuffled(seed):
            out = decode(b, 3)
        assert_same(out, in_order, f"out, order of programs number {seed},")


@pytest.mark.parametrize("splits", [1, 3])
def test_in_bf16_all_but_the_operands_of_products_is_float32(splits: int) -> None:
    b = batch([37, 3], Heads(4, 2, 32, 5), BF16)
    assert_close(decode(b, splits), exact(b), "out")


@pytest.mark.catches("runs-only-in-the-interpreter")
def test_the_kernel_compiles_for_a_gpu() -> None:
    must_compile(COMPILED)
