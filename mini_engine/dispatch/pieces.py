"""Where a forward pass is cut into pieces: graphs, and between them the ops that resist capture.

In: the names of the ops, in order, and the *splitting* ops, at which to cut. Out: `Piece`s.

    split_pieces(["qkv", "kv_update", "attention", "o"], {"kv_update", "attention"})
    # Piece(0, ["qkv"]) · Piece(1, ["kv_update", "attention"], splitting) · Piece(2, ["o"])

The rules are those of vLLM 0.33's `split_graph` in `vllm/compilation/backends.py`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Piece:
    id: int
    splitting: bool  # its ops run live; otherwise they are captured as a graph
    ops: list[str]
    positions: list[int]  # of its ops in the list that was split


def split_pieces(ops: Sequence[str], splitting_ops: Collection[str]) -> list[Piece]:
    """Cut a forward pass at its splitting ops. The pieces, in the order of their first ops.

    Splitting ops are attention and its like, whose work depends on the requests and not on the
    number of tokens alone, and in vLLM also KV-cache writes (`_is_in` tells them).

    Neighbours of one kind share a piece: a row of splitting ops, or a row of others, which will be
    captured. Each piece has the next number as its `id`. Number 0 is kept for what comes before the
    first splitting op: a pass that begins with one starts at 1.

    A bare allocation (`_is_allocation`) launches nothing. Alone between two splitting pieces it
    would be a graph of nothing, so it joins the last piece of captured ops before it. Its number is
    left out, and the splitting pieces on either side of it stay two. With no captured piece before
    it, it becomes one, which a later lone allocation may join. Two allocations side by side are a
    piece like any other.

    An op list has no data flow, so allocations are assumed to have no inputs. (vLLM keeps one in
    place if its input is made after the piece that it would move to.)"""
    rows: list[tuple[bool, list[int]]] = []  # neighbours of one kind, and where they stand
    for at, op in enumerate(ops):
        splits = _is_in(op, splitting_ops)
        if not rows or rows[-1][0] != splits:
            rows.append((splits, []))
        rows[-1][1].append(at)
    pieces: list[Piece] = []
    captured: Piece | None = None  # the last piece so far that is to be a graph
    for number, (splits, positions) in enumerate(rows, start=int(bool(rows) and rows[0][0])):
        inside = [ops[at] for at in positions]
        if len(inside) == 1 and _is_allocation(inside[0]) and captured is not None:
            captured.ops.extend(inside)
            captured.positions.extend(positions)
            continue
        pieces.append(Piece(number, splits, inside, positions))
        captured = captured if splits else pieces[-1]
    return pieces


def _is_in(op: str, splitting_ops: Collection[str]) -> bool:
    """`ns::name.default` counts as `ns::name`; other overloads are different ops."""
    return op in splitting_ops or op.removesuffix(".default") in splitting_ops


def _is_allocation(op: str) -> bool:
    name = op.removeprefix("aten::").removeprefix("torch.").partition(".")[0]
    return name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
