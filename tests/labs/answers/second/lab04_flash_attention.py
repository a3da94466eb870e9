"""Another right way: einsum, logarithms of sums, a tile as a part of its own that is merged."""


def scores_of(q, keys):
    return np.einsum("hgd,nhd->hgn", q / F32(np.sqrt(q.shape[-1])), keys)


def attend_plain(q, keys, values):
    scores = scores_of(q, keys).astype(np.float64)
    log_of_sum = np.logaddexp.reduce(scores, axis=-1, keepdims=True)
    return np.einsum("hgn,nhd->hgd", np.exp(scores - log_of_sum), values).astype(F32)


def add_tile(part, q, keys, values):
    scores = scores_of(q, keys)
    own = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - own)
    acc = np.einsum("hgn,nhd->hgd", weights, values)
    m = np.maximum(own, part.m)
    before, now = np.exp(part.m - m), np.exp(own - m)
    l = before * part.l + now * weights.sum(axis=-1, keepdims=True)
    return Part(m, l, before * part.acc + now * acc)


def walk(q, keys, values, tiles):
    kv_heads, group, _ = q.shape
    m = np.full((kv_heads, group, 1), -np.inf, F32)
    l, acc = np.zeros((kv_heads, group, 1), F32), np.zeros(q.shape, F32)
    for tile in tiles:
        m, l, acc = add_tile(Part(m, l, acc), q, keys[tile], values[tile])
    return Part(m, l, acc)


def tiles_of(n, tile, split=0, splits=1):
    count = (n + tile - 1) // tile
    mine = [i for i in range(count) if i % splits == split]
    return [slice(i * tile, n if i == count - 1 else (i + 1) * tile) for i in mine]


def combine(parts):
    m = np.stack([part.m for part in parts]).max(axis=0)
    l, acc = np.zeros_like(m), np.zeros_like(parts[0].acc)
    for part in parts:
        seen = np.isfinite(part.m)
        keep = np.where(seen, np.exp(np.where(seen, part.m, m) - m), 0)
        l = l + keep * part.l
        acc = acc + keep * part.acc
    return Part(m, l, acc)
