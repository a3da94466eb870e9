"""the-top-is-left-out: ends a range at the top, so that a top on the grid is no rung."""


def _grid(top):
    grid = [1, 2, 4, *range(8, min(top, 256), 8), *range(256, top + 1, 16)]
    return [size for size in grid if size <= top]
