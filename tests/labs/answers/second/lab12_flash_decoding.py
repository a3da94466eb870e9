"""Another right way: sums instead of tensor cores, exp2, partials merged one by one."""


@triton.jit
def cache_rows(table, token, inside, BLOCK_SIZE: tl.constexpr):
    column = tl.where(inside, token, 0) // BLOCK_SIZE
    first = tl.load(table + column, mask=inside).to(tl.int64) * BLOCK_SIZE
    return tl.where(inside, first + (token - column * BLOCK_SIZE), 0)


@triton.jit
def online_softmax(scores, valid, values, m, l, acc):
    hidden = tl.where(valid, 0.0, 1.0)
    m_here = tl.max(scores * (1.0 - hidden) + LOWEST * hidden, axis=1)
    lower = m < m_here
    top = tl.where(lower, m_here, m)
    weights = tl.exp2((tl.minimum(scores, top[:, None]) - top[:, None]) * 1.4426950408889634)
    weights = weights * (1.0 - hidden)
    shrink = tl.where(lower, tl.exp(m - top), 1.0)
    wide = values.to(tl.float32)
    added = tl.sum(weights[:, :, None] * wide[None, :, :], axis=1)
    return top, shrink * l + tl.sum(weights, axis=1), shrink[:, None] * acc + added


@triton.jit
def decode_split_kernel(
    out,
    sums,
    stats,
    counters,
    q,
    k_cache,
    v_cache,
    kv_scales,
    block_table,
    context_lens,
    scale,
    table_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SPLITS: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
    TILE: tl.constexpr,
    PDL: tl.constexpr,
):
    pdl_release(PDL)
    pdl_wait(PDL)
    request = tl.program_id(0)
    pair = request * KV_HEADS + tl.program_id(1)
    split = tl.program_id(2)
    d = tl.arange(0, HEAD_DIM)[None, :]
    member = tl.arange(0, PADDED_GROUP)
    row = q + (pair * GROUP + member[:, None]) * HEAD_DIM + d
    mine = tl.load(row, mask=member[:, None] < GROUP, other=0.0, cache_modifier=".cg")
    mine = mine.to(tl.float32) * scale
    length = tl.load(context_lens + request, cache_modifier=".cg")
    m = tl.full((PADDED_GROUP,), LOWEST, tl.float32)
    l = tl.zeros((PADDED_GROUP,), tl.float32)
    acc = tl.zeros((PADDED_GROUP, HEAD_DIM), tl.float32)
    tile = split
    while tile * TILE < length:
        token = tile * TILE + tl.arange(0, TILE)
        inside = token < length
        rows = cache_rows(block_table + request * table_stride, token, inside, BLOCK_SIZE)
        at = rows[:, None] * (KV_HEADS * HEAD_DIM) + tl.program_id(1) * HEAD_DIM + d
        keys = load_numbers(k_cache + at, inside, tl.float32).to(tl.float32)
        keys *= head_scale(kv_scales, tl.program_id(1))
        values = load_numbers(v_cache + at, inside, tl.float32).to(tl.float32)
        values *= head_scale(kv_scales, KV_HEADS + tl.program_id(1))
        scores = tl.sum(mine[:, None, :] * keys[None, :, :], axis=2)
        valid = (member[:, None] < PADDED_GROUP) & inside[None, :]
        m, l, acc = online_softmax(scores, valid, values, m, l, acc)
        tile += SPLITS
    partial = (pair * GROUP + member) * SPLITS + split
    store_partial(sums, stats, partial, member < GROUP, m, l, acc, HEAD_DIM)
    combine_if_last(
        *(out, sums, stats, counters + pair, pair * GROUP),
        *(GROUP, HEAD_DIM, SPLITS, PADDED_SPLITS),
    )


@triton.jit
def combine(sums, stats, head, HEAD_DIM: tl.constexpr, SPLITS: tl.constexpr, PADDED: tl.constexpr):
    d = tl.arange(0, HEAD_DIM)
    m = LOWEST
    l = 0.0
    acc = tl.zeros((HEAD_DIM,), tl.float32)
    for split in range(SPLITS):
        partial = head * SPLITS + split
        its_m = tl.load(stats + partial * 2, cache_modifier=".cg")
        its_l = tl.load(stats + partial * 2 + 1, cache_modifier=".cg")
        top = tl.maximum(m, its_m)
        mine = tl.exp(m - top)
        other = tl.exp(its_m - top)
        row = tl.load(sums + partial * HEAD_DIM + d, cache_modifier=".cg")
        acc = acc * mine + row * other
        l = l * mine + its_l * other
        m = top
    return acc / tl.where(l == 0.0, 1.0, l)


def num_splits(max_context: int, num_reqs: int, num_kv_heads: int, num_programs: int) -> int:
    splits = 1
    while (
        splits < MAX_SPLITS
        and splits * num_reqs * num_kv_heads < num_programs
        and splits * TILE < max_context
    ):
        splits += 1
    return splits
