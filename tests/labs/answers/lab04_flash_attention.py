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
    return combine([Part(own, weights.sum(axis=-1, keepdims=True), acc), part])


def walk(q, keys, values, tiles):
    kv_heads, group, _ = q.shape
    best = np.full((kv_heads, group, 1), -np.inf, F32)
    total, acc = np.zeros((kv_heads, group, 1), F32), np.zeros(q.shape, F32)
    for tile in tiles:
        best, total, acc = add_tile(Part(best, total, acc), q, keys[tile], values[tile])
    return Part(best, total, acc)


def tiles_of(n, tile, split=0, splits=1):
    count = (n + tile - 1) // tile
    mine = [i for i in range(count) if i % splits == split]
    return [slice(i * tile, n if i == count - 1 else (i + 1) * tile) for i in mine]


def combine(parts):
    best = np.stack([part.best for part in parts]).max(axis=0)
    total, acc = np.zeros_like(best), np.zeros_like(parts[0].acc)
    for part in parts:
        seen = np.isfinite(part.best)
        keep = np.where(seen, np.exp(np.where(seen, part.best, best) - best), 0)
        total = total + keep * part.total
        acc = acc + keep * part.acc
    return Part(best, total, acc)
