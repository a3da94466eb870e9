"""A third right way: every tile is walked past, keys times queries, partials in a loop."""


@triton.jit
def cache_rows(table, token, inside, BLOCK_SIZE: tl.constexpr):
    which = token // BLOCK_SIZE
    blocks = tl.load(table + which, mask=inside)
    return (token - which * BLOCK_SIZE) + tl.cast(blocks, tl.int64) * BLOCK_SIZE


@triton.jit
def online_softmax(scores, valid, values, m, l, acc):
    here = tl.max(tl.where(valid, scores, LOWEST), axis=1)
    top = tl.maximum(here, m)
    grown = tl.where(valid, scores - top[:, None], LOWEST)
    weights = tl.where(grown > LOWEST, tl.exp(grown), 0.0)
    old = tl.exp(m - top)
    product = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    return top, tl.sum(weights, axis=1) + old * l, product + old[:, None] * acc


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
    split = tl.program_id(2)
    group = tl.program_id(0) * KV_HEADS + tl.program_id(1)
    d = tl.arange(0, HEAD_DIM)
    lane = tl.arange(0, TILE)
    member = tl.arange(0, PADDED_GROUP)
    pdl_wait(PDL)
    context = tl.load(context_lens + tl.program_id(0), volatile=True)
    at = q + group * GROUP * HEAD_DIM + member[:, None] * HEAD_DIM + d[None, :]
    queries = tl.load(at, mask=(member < GROUP)[:, None], cache_modifier=".cv")
    m = tl.zeros((PADDED_GROUP,), tl.float32) + LOWEST
    l = tl.zeros((PADDED_GROUP,), tl.float32)
    acc = tl.zeros((PADDED_GROUP, HEAD_DIM), tl.float32)
    table = block_table + tl.program_id(0) * table_stride
    factor = head_scale(kv_scales, tl.program_id(1)) * scale
    for number in range((context + TILE - 1) // TILE):
        if number % SPLITS == split:
            token = number * TILE + lane
            inside = token < context
            rows = cache_rows(table, token, inside, BLOCK_SIZE) * KV_HEADS + tl.program_id(1)
            place = rows[:, None] * HEAD_DIM + d[None, :]
            keys = load_numbers(k_cache + place, inside, q.dtype.element_ty)
            values = load_numbers(v_cache + place, inside, q.dtype.element_ty)
            scores = tl.trans(tl.dot(keys, tl.trans(queries), input_precision="ieee")) * factor
            m, l, acc = online_softmax(scores, inside[None, :], values, m, l, acc)
    acc *= head_scale(kv_scales, tl.program_id(1) + KV_HEADS)
    heads = group * GROUP + member
    store_partial(sums, stats, heads * SPLITS + split, member < GROUP, m, l, acc, HEAD_DIM)
    combine_if_last(
        out, sums, stats, counters + group, group * GROUP, GROUP, HEAD_DIM, SPLITS, PADDED_SPLITS
    )


@triton.jit
def combine(sums, stats, head, HEAD_DIM: tl.constexpr, SPLITS: tl.constexpr, PADDED: tl.constexpr):
    split = tl.arange(0, PADDED)
    there = split < SPLITS
    sums += head * SPLITS * HEAD_DIM
    stats += head * SPLITS * 2
    top = tl.max(tl.load(stats + 2 * split, mask=there, other=LOWEST, cache_modifier=".cg"), axis=0)
    mine = tl.load(stats + 2 * split, mask=there, other=LOWEST, cache_modifier=".cg")
    weights = tl.load(stats + 2 * split + 1, mask=there, other=0.0, cache_modifier=".cg")
    factor = tl.exp(mine - top)
    whole = tl.sum(weights * factor, axis=0)
    row = tl.zeros((HEAD_DIM,), tl.float32)
    for s in range(SPLITS):
        share = tl.exp(tl.load(stats + 2 * s, cache_modifier=".cg") - top)
        at = sums + s * HEAD_DIM + tl.arange(0, HEAD_DIM)
        row += share * tl.load(at, cache_modifier=".cg")
    return tl.where(whole > 0.0, row / tl.maximum(whole, 1e-30), 0.0)


def num_splits(max_context: int, num_reqs: int, num_kv_heads: int, num_programs: int) -> int:
    each = num_reqs * num_kv_heads
    tiles = (max_context + TILE - 1) // TILE
    for splits in range(1, min(tiles, MAX_SPLITS)):
        if splits * each >= num_programs:
            return splits
    return max(1, min(tiles, MAX_SPLITS))
