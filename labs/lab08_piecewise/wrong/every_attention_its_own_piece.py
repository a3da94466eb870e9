"""every-attention-its-own-piece: each splitting op is a cut, and after each cut begins a graph."""


def split_pieces(ops, splitting_ops):
    pieces, number = [], 0
    for at, op in enumerate(ops):
        if _is_in(op, splitting_ops):
            pieces.append(Piece(number + 1, True, [op], [at]))
            number += 2
        elif pieces and pieces[-1].id == number:
            pieces[-1].ops.append(op)
            pieces[-1].positions.append(at)
        else:
            pieces.append(Piece(number, False, [op], [at]))
    return pieces
