"""What a trace relies on, and which calls it therefore serves: one dynamic dimension, tokens.

In:  the tensors of a step that change from call to call. Out: their `Signature`: two calls of the
     same signature can run the same trace, so it is what traces are kept under.

A trace is right for what Dynamo saw: dtypes, devices, strides, sizes. We let it see one size as a
symbol, the first of `input_ids`, `positions` and `slot_mapping`. Sizes 0 and 1 never are symbols:
at size 1 a tensor is broadcast, and what the trace says of 2 may be wrong of it. So a step of one
token has a trace of its own, all others share one, and a step of none is refused.

Weights and caches are in the key of a trace (backend.py), and stay. Dynamo's own guards, which look
at everything at every call, are dropped, as in vLLM's mode 3. So a model that asks how many tokens
there are (`if len(x) > 8`) is refused: its trace would be right for one of the answers only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

TOKENS = "T"


@dataclass(frozen=True)
class Signature:
    """A class of steps. Hashable, and a line of text for the cache's key."""

    tokens: str  # "T": any number from 2 up; "1": one
    tensors: tuple[str, ...]  # "positions int32[T] stride (1,) cpu"

    def __str__(self) -> str:
        return "; ".join(self.tensors)


def signature(step: Mapping[str, Tensor]) -> Signature:
    """Of the tensors of a step, each (T, …). Raises ValueError for no token at all, and where they
    disagree about how many there are."""
    sizes = {name: tensor.shape[0] for name, tensor in step.items()}
    if len(set(sizes.values())) != 1 or 0 in sizes.values():
        raise ValueError(
            f"a step of {sizes} tokens: expected as many rows in each tensor, and at least one"
        )
    tokens = "1" if 1 in sizes.values() else TOKENS
    return Signature(tokens, tuple(described(name, t, tokens) for name, t in step.items()))


def described(name: str, tensor: Tensor, tokens: str | None = None) -> str:
    """A tensor in a line: all that compiled code takes for granted. `tokens` for its first size."""
    sizes = [str(size) for size in tensor.shape]
    if tokens:
        sizes[0] = tokens
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{name} {dtype}[{', '.join(sizes)}] stride {tuple(tensor.stride())} {tensor.device}"


def mark_tokens(step: Mapping[str, Tensor]) -> None:
    """Tell Dynamo that the first size of each is a symbol, unless it is 1."""
    for tensor in step.values():
        if tensor.shape[0] > 1:
            torch._dynamo.mark_dynamic(tensor, 0)


def conditions(tokens: torch.SymInt) -> list[str]:
    """What the trace found out about the number of tokens, beyond that it is 2 or more and the same
    in every tensor of the step: expressions, of which there should be none."""
    found = [guard.expr for guard in tokens.node.shape_env.guards]
    return [
        str(one)
        for one in found
        if type(one).__name__ != "Equality" or not all(side.is_Symbol for side in one.args)
    ]
