"""Lab 12: flash-decoding. What you write runs in Triton's interpreter and is held against a softmax
in float64, key by key. Cache rows that hold no key of a request are NaN: nobody may read them."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder

from mini_engine.cuda.kernels import attention
from mini_engine.cuda.kernels.fp8 import to_e4m3, widened
from mini_engine.cuda.kernels.paged import LOWEST, Heads, cache_rows, combine, online_softmax

NAN = float("nan")
BF16, F32 = torch.bfloat16, torch.float32


def assert_close(got: Tensor, wanted: Tensor, what: str, slack: int = 1) -> None:
    """Up to the order of float32 sums; in bf16 up to one rounding of the result and one of each
    weight, which tensor cores take in bf16. `slack`: how large the terms of the sum are."""
    rtol, atol = {F32: (2e-5, 2e-6 * slack), BF16: (2**-7, 2**-7)}[got.dtype]
    torch.testing.assert_close(
        got.double(), wanted, rtol=rtol, atol=atol, msg=lambda text: f"{what} is off\n{text}"
    )


def assert_same(got: Tensor, wanted: Tensor, what: str) -> None:
    """To the last bit."""
    torch.testing.assert_close(
        got, wanted, rtol=0, atol=0, msg=lambda text: f"{what} is off\n{text}"
    )


# ---------------------------------------------------------------- the block table


@triton.jit
def rows_kernel(out, table, count: tl.constexpr, size: tl.constexpr):
    token = tl.arange(0, 32)
    rows = cache_rows(table, token, token < count, size)
    tl.store(out + token, rows, mask=token < count)


@pytest.mark.catches("the-cache-is-in-order")
def test_a_token_lies_in_its_block_of_the_table_at_its_place_in_the_block() -> None:
    rng = random.Random(1)
    for block_size, tokens in ((5, 13), (16, 32), (1, 7), (7, 1)):
        blocks = [rng.randrange(1, 2**30) for _ in range(-(-tokens // block_size))]
        table = torch.tensor([*blocks, *[-1] * 32], dtype=torch.int32)
        out = torch.full((32,), -7, dtype=torch.int64)
        rows_kernel[(1,)](out, table, tokens, block_size)
        wanted = [blocks[t // block_size] * block_size + t % block_size for t in range(tokens)]
        assert out[:tokens].tolist() == wanted, f"rows, blocks of {block_size}"


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


def combined(keys: list[list[int]]) -> tuple[Tensor, Tensor]:
    """keys[head][split]: how many. (what `combine` says, the softmax in float64), (heads, 16)."""
    torch.manual_seed(len(keys[0]))
    splits = len(keys[0])
    sums = torch.full((len(keys) + 1, splits, 16), NAN)  # behind the last head: nobody's
    stats = torch.full((len(keys) + 1, splits, 2), NAN)
    wanted = torch.zeros(len(keys), 16, dtype=torch.float64)
    for h, counts in enumerate(keys):
        scores = [torch.randn(n) + 5 * s % 7 for s, n in enumerate(counts)]
        values = [torch.randn(n, 16) for n in counts]
        sums[h], stats[h] = partials_of(scores, values)
        if sum(counts):
            wanted[h] = torch.cat(scores).double().softmax(0) @ torch.cat(values).double()
    out = torch.full((len(keys), 16), NAN)
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


# ---------------------------------------------------------------- the whole kernel


@dataclass(frozen=True)
class Batch:
    """Requests in a paged cache, scattered. Rows without a key are NaN, unused table entries 0."""

    heads: Heads
    q: Tensor  # (R, q)
    k_cache: Tensor  # (num_blocks, block_size, kv_heads, D)
    v_cache: Tensor
    table: Tensor  # (R, max_blocks): the left part of a wider one
    contexts: Tensor  # (R,)


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
    out = torch.full_like(b.q, NAN)
    counters = torch.zeros(len(b.q), b.heads.num_kv_heads, dtype=torch.int32)
    attention.decode_attention(
        out, counters, b.q, b.k_cache, b.v_cache, b.table, b.contexts, splits
    )
    assert (counters == 0).all(), "the counters must be left at zero"
    return out


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


@pytest.mark.catches("keys-beyond-the-context")
def test_of_the_last_tile_only_keys_of_the_context_are_read() -> None:
    for contexts in ([5, 31], [33, 32]):
        lost = decode(batch(contexts, Heads(2, 1, 16, 5)), 2).isnan().sum().item()
        assert lost == 0, f"contexts {contexts}: rows that hold no key were read, NaN came of it"


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


@pytest.mark.catches("an-empty-split-is-nan")
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
        assert_same(decode(alone, 2)[0], out[row], f"row {row} without the others")


@pytest.mark.parametrize("splits", [1, 3])
def test_in_bf16_all_but_the_operands_of_products_is_float32(splits: int) -> None:
    b = batch([37, 3], Heads(4, 2, 32, 5), BF16)
    assert_close(decode(b, splits), exact(b), "out")


def test_a_cache_in_fp8_is_read_with_the_scales_of_its_heads() -> None:
    b = batch([37, 3, 0], Heads(4, 2, 32, 5))
    scales = torch.tensor([[0.5, 0.125], [0.25, 2.0]])
    caches = [to_e4m3(c, s) for c, s in zip((b.k_cache, b.v_cache), scales, strict=True)]
    out, counters = torch.full_like(b.q, NAN), torch.zeros(3, 2, dtype=torch.int32)
    attention.decode_attention(
        out, counters, b.q, *caches, b.table, b.contexts, 2, kv_scales=scales
    )
    k_cache, v_cache = (widened(c, scales, i) for i, c in enumerate(caches))
    assert_close(out, exact(replace(b, k_cache=k_cache, v_cache=v_cache)), "out")


def test_whichever_program_arrives_last_combines_to_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The interpreter runs one program after another: here from the last split to the first."""
    b = batch([70, 2], Heads(4, 2, 16, 5))
    forwards = decode(b, 2)
    begin = InterpreterBuilder.set_grid_idx

    def backwards(self: InterpreterBuilder, x: int, y: int, z: int) -> None:
        begin(self, x, y, self.grid_dim[2] - 1 - z)

    monkeypatch.setattr(InterpreterBuilder, "set_grid_idx", backwards)
    assert_same(decode(b, 2), forwards, "out with the first split last")


@pytest.mark.catches("reads-before-the-wait")
def test_what_the_kernel_before_writes_is_read_after_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    b = batch([9], Heads(2, 1, 16, 5))
    wanted = exact(b)
    real = [(x, x.clone()) for x in (b.q, b.k_cache, b.v_cache, b.table, b.contexts)]
    for tensor, _ in real:
        tensor.zero_()

    def wait(_pdl: object) -> None:
        for tensor, value in real:
            tensor.copy_(value)

    monkeypatch.setattr(attention, "pdl_wait", wait)
    assert_close(decode(b, 1), wanted, "out")


# ---------------------------------------------------------------- how many splits


@pytest.mark.catches("as-many-splits-as-there-is-room")
def test_splits_fill_the_gpu_and_no_split_is_without_a_tile() -> None:
    rng = random.Random(9)
    for _ in range(300):
        context, reqs = rng.randint(1, 6000), rng.choice([1, 2, 7, 64, 300])
        kv_heads, programs = rng.choice([1, 2, 8]), rng.choice([1, 108, 264, 1000])
        splits = attention.num_splits(context, reqs, kv_heads, programs)
        most = min(attention.MAX_SPLITS, -(-context // attention.TILE))
        case = f"context {context}, {reqs} requests, {kv_heads} KV heads, {programs} programs"
        assert 1 <= splits <= most, f"{splits} splits, at most {most} have a tile: {case}"
        enough = splits * reqs * kv_heads >= programs
        assert enough or splits == most, f"{splits} splits are too few: {case}"
        fewer = (splits - 1) * reqs * kv_heads >= programs
        assert splits == 1 or not fewer, f"{splits - 1} splits are enough: {case}"
