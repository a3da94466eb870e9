"""last-tile-is-full: counts whole tiles, n // tile of them."""


def tiles_of(n, tile, split=0, splits=1):
    return [slice(i * tile, (i + 1) * tile) for i in range(split, max(n // tile, 1), splits)]
