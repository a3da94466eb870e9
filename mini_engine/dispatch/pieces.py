"""Where a forward pass is cut into pieces: graphs, and between them the ops that resist capture.

In: the names of the ops, in order, and the *splitting* ops, at which to cut. Out: `Piece`s.

    split_pieces(["qkv", "kv_update", "attention", "o"], {"kv_update", "attention"})
    # Piece(0, ["qkv"]) · Piece(1, ["kv_update", "attention"], splitting) · Piece(2, ["o"])

The rules are those of vLLM 0.33's `split_graph` in `vllm/compilation/backends.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Piece:
    """One piece of a split forward pass."""

    id: int
    splitting: bool  # its ops run live; otherwise they are captured as a graph
    ops: list[str]
    positions: list[int]  # of its ops in the list that was split


def split_pieces(ops: Sequence[str], splitting_ops: Collection[str]) -> list[Piece]:
    """Cut a forward pass at its splitting ops. Adjacent splitting ops share one piece.

    Splitting ops are attention and its like, whose work depends on the requests and not on the
    number of tokens alone, and in vLLM also KV-cache writes.

    A bare allocation (`empty`) alone between two splitting ops would make a graph of nothing, so
    it moves to the captured piece before it. Ids may have gaps: such a move leaves one, and id 0
    is missing if the pass begins with a splitting op.

    An op list has no data flow, so allocations are assumed to have no inputs. (vLLM keeps one in
    place if its input is made after the piece that it would move to.)
    """
    splits = [_is_in(op, splitting_ops) for op in ops]
    bare = [_is_allocation(op) for op in ops]
    piece_of = without_graphs_of_nothing(number_pieces(splits), splits, bare)
    pieces = []
    for piece in sorted(set(piece_of)):
        inside = [at for at, owner in enumerate(piece_of) if owner == piece]
        pieces.append(Piece(piece, splits[inside[0]], [ops[at] for at in inside], inside))
    return pieces


def number_pieces(splits: Sequence[bool]) -> list[int]:
    """The number of the piece that each op belongs to. `splits`: is it a splitting op?

    Adjacent ops of one kind share a piece, and the next piece has the next number. Number 0 is
    kept for ops before the first splitting op: a pass that begins with one starts at 1.
    """
    numbers: list[int] = []
    for at, split in enumerate(splits):
        same_kind = at > 0 and splits[at - 1] == split
        first = int(split) if at == 0 else numbers[-1] + 1
        numbers.append(numbers[-1] if same_kind else first)
    return numbers


def without_graphs_of_nothing(
    numbers: Sequence[int], splits: Sequence[bool], bare: Sequence[bool]
) -> list[int]:
    """The same numbers, but a piece of a single bare allocation joins an earlier captured piece.

    `bare`: is the op a bare allocation, which launches nothing? If it is alone in its piece, it
    gets the number of the last captured piece before it, that is, of ops that do not split and have
    not moved. If there is none, it stays, and later allocations may join it. Two allocations are
    a piece like any other. All other numbers stay as they are, even if that leaves gaps.
    """
    numbers = list(numbers)
    captured: int | None = None  # the last captured piece so far
    for piece in sorted(set(numbers)):
        inside = [at for at, owner in enumerate(numbers) if owner == piece]
        if len(inside) == 1 and bare[inside[0]] and captured is not None:
            numbers[inside[0]] = captured
        elif not splits[inside[0]]:
            captured = piece
    return numbers


def _is_in(op: str, splitting_ops: Collection[str]) -> bool:
    """`ns::name.default` counts as `ns::name`; other overloads are different ops."""
    return op in splitting_ops or op.removesuffix(".default") in splitting_ops


def _is_allocation(op: str) -> bool:
    name = op.removeprefix("aten::").removeprefix("torch.").partition(".")[0]
    return name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
