"""one-tile-a-split: split s takes keys s · tile to (s + 1) · tile, however long the context is."""


def tiles_of(n, tile, split=0, splits=1):
    if splits == 1:
        return [slice(start, min(start + tile, n)) for start in range(0, n, tile)]
    start, stop = split * tile, min((split + 1) * tile, n)
    return [slice(start, stop)] if start < n else []
