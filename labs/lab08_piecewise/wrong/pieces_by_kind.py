"""pieces-by-kind: everything that may be captured goes into one graph, all attention behind it."""


def split_pieces(ops, splitting_ops):
    kinds = {False: [], True: []}
    for at, op in enumerate(ops):
        kinds[_is_in(op, splitting_ops)].append(at)
    return [
        Piece(int(splits), splits, [ops[at] for at in places], places)
        for splits, places in kinds.items()
        if places
    ]
