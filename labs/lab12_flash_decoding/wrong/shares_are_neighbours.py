"""shares-are-neighbours: cuts the tiles into SPLITS pieces, one after the other."""


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
    request, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    member = tl.arange(0, PADDED_GROUP)
    d = tl.arange(0, HEAD_DIM)
    live = member < GROUP
    head = (request * KV_HEADS + kv_head) * GROUP + member
    pdl_wait(PDL)
    context = tl.load(context_lens + request, cache_modifier=".cg")
    scale = scale * head_scale(kv_scales, kv_head)
    v_scale = head_scale(kv_scales, KV_HEADS + kv_head)
    at = head[:, None] * HEAD_DIM + d[None, :]
    queries = tl.load(q + at, mask=live[:, None], other=0.0, cache_modifier=".cg")
    m = tl.full((PADDED_GROUP,), LOWEST, tl.float32)
    l = tl.zeros((PADDED_GROUP,), tl.float32)
    acc = tl.zeros((PADDED_GROUP, HEAD_DIM), tl.float32)
    share = tl.cdiv(tl.cdiv(context, TILE), SPLITS) * TILE
    for start in range(split * share, tl.minimum(split * share + share, context), TILE):
        token = start + tl.arange(0, TILE)
        inside = token < context
        row = cache_rows(block_table + request * table_stride, token, inside, BLOCK_SIZE)
        at_kv = (row * KV_HEADS + kv_head)[:, None] * HEAD_DIM + d[None, :]
        keys = load_numbers(k_cache + at_kv, inside, queries.dtype)
        values = load_numbers(v_cache + at_kv, inside, queries.dtype)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        m, l, acc = online_softmax(scores, inside[None, :], values, m, l, acc)
    store_partial(sums, stats, head * SPLITS + split, live, m, l, acc * v_scale, HEAD_DIM)
    counter = counters + request * KV_HEADS + kv_head
    first = (request * KV_HEADS + kv_head) * GROUP
    combine_if_last(out, sums, stats, counter, first, GROUP, HEAD_DIM, SPLITS, PADDED_SPLITS)
