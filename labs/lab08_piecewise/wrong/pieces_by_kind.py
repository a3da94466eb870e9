"""pieces-by-kind: everything that may be captured goes into one graph, all attention behind it."""


def number_pieces(splits):
    return [int(split) for split in splits]
