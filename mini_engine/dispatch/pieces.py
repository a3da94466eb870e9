"""Where a forward pass is cut into pieces: graphs between the ops that resist capture.

In: the names of the ops, in order, and which of them split. Out: `Piece`s, in order.

    split_pieces(["qkv", "kv_update", "attention", "o"], {"kv_update", "attention"})
    # Piece(0, ["qkv"]) · Piece(1, ["kv_update", "attention"], splitting) · Piece(2, ["o"])

The rules are those of vLLM 0.33's `split_graph` in `vllm/compilation/backends.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

# The ops that vLLM 0.33 leaves out of piecewise graphs: attention and what behaves like it
# (their work depends on the requests, not on the number of tokens alone), and KV-cache writes.
DEFAULT_SPLITTING_OPS: tuple[str, ...] = (
    "vllm::unified_attention_with_output",
    "vllm::unified_mla_attention_with_output",
    "vllm::mamba_mixer2",
    "vllm::mamba_mixer",
    "vllm::short_conv",
    "vllm::qwen4_exp_ple_short_conv",
    "vllm::qwen4_exp_qsa_with_output",
    "vllm::qwen4_exp_qsa_prepare_with_output",
    "vllm::linear_attention",
    "vllm::qwen_gdn_attention_core",
    "vllm::qwen_gdn_attention_core_fused_norm_packed",
    "vllm::gdn_attention_core_xpu",
    "vllm::olmo_hybrid_gdn_full_forward",
    "vllm::sparse_attn_indexer",
    "vllm::rocm_aiter_sparse_attn_indexer",
    "vllm::deepseek_v4_attention",
    "vllm::hpc_rope_norm_forward",
    "vllm::unified_kv_cache_update",
    "vllm::unified_mla_kv_cache_update",
)


@dataclass(frozen=True)
class Piece:
    """One piece of a split forward pass: captured as a graph, or (`splitting`) run live.

    `positions` says where each of `ops` stood in the list that was split.
    """

    id: int
    splitting: bool
    ops: list[str]
    positions: list[int]


def split_pieces(
    ops: Sequence[str], splitting_ops: Collection[str] = DEFAULT_SPLITTING_OPS
) -> list[Piece]:
    """Cut a forward pass at its splitting ops; splitting ops side by side share one piece.

    An `empty` (a bare allocation) alone between two splitting ops would make a graph that holds
    nothing, so it moves to the captured piece before it. That leaves a gap in the ids, and so
    does a pass that begins with a splitting op: id 0 is kept for what comes before it.

    An op list has no data flow, so an allocation is taken to depend on nothing (vLLM lets one
    stay where it is if its input is made later than the piece it would move to).
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

    Neighbours of one kind share a piece, and each further piece has the next number. Number 0 is
    kept for what comes before the first splitting op: a pass that begins with one begins with 1.
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
    """The same numbers, but a piece that is one bare allocation joins an earlier captured piece.

    `bare`: is the op a bare allocation, which launches nothing? One that is a piece all alone gets
    the number of the last captured piece before it (one of ops that do not split, and not moved
    itself). If there is none it stays, and is one that later ones join. Two allocations are a piece
    like any other. All other numbers stay as they are, so that there are gaps in them.
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
    """`ns::name.default` is the op `ns::name`; other overloads are ops of their own."""
    return op in splitting_ops or op.removesuffix(".default") in splitting_ops


def _is_allocation(op: str) -> bool:
    name = op.removeprefix("aten::").removeprefix("torch.").partition(".")[0]
    return name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
