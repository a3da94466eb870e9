"""null-block-is-handed-out: a cache of num_blocks blocks has num_blocks blocks to give."""


def usable_blocks(num_blocks):
    return list(range(num_blocks - 1, -1, -1))
