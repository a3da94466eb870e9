"""a-graph-of-nothing: an op that does not split is captured, whether it launches something or not."""


def split_pieces(ops, splitting_ops):
    pieces = []
    for at, op in enumerate(ops):
        splits = _is_in(op, splitting_ops)
        if not pieces or pieces[-1].splitting != splits:
            pieces.append(Piece(pieces[-1].id + 1 if pieces else int(splits), splits, [], []))
        pieces[-1].ops.append(op)
        pieces[-1].positions.append(at)
    return pieces
