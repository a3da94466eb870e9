"""The op list of anything that runs eagerly in PyTorch: one `OpCost` for each op that wrote
something, in order. Views launch nothing and are left out.

Bytes: each tensor read once, each result written once; a lookup reads only its rows of the table.
Flops are of matrix products only. A few ops (a long argmax) launch two kernels; they count as one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mini_engine.step.kernels import OpCost
from mini_engine.step.ops import Kind

LOOKUPS = {"embedding", "index_select", "gather", "index"}  # read as many rows as they write
SCATTERS = {"index_copy_", "index_put_", "index_copy", "index_put"}  # write only the source's rows
FILLS = {"zero_", "fill_", "normal_", "zeros_like", "zeros", "full", "full_like", "ones"}
PRODUCTS = {"mm", "bmm", "addmm", "baddbmm"}
NOTHING = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}


class OpRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`with recorder:` puts the ops of the body into `recorder.ops`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[OpCost] = []

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given, name = _tensors((args, kwargs or {})), func.overloadpacket.__name__
        written = _written(func, given, _tensors(out), args)
        if written and name not in NOTHING:
            flops = 0
            if name in PRODUCTS:  # 2 · m · n · k; `given` ends with its two matrices
                flops = 2 * written[0].numel() * given[-1].shape[-2]
            moved = _bytes(name, given, written, args)
            self.ops.append(OpCost(name, moved, flops, kind=_kind(name)))
        return out


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def _written(func: Any, given: list[Tensor], out: list[Tensor], args: Any) -> list[Tensor]:
    """What the op wrote: the arguments that its schema says it writes, or results in new memory."""
    writes = [a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments]
    if any(writes):
        return _tensors([x for x, write in zip(args, writes, strict=False) if write]) or out
    known = {tensor.untyped_storage()._cdata for tensor in given}
    return [tensor for tensor in out if tensor.untyped_storage()._cdata not in known]


def _bytes(name: str, given: list[Tensor], written: list[Tensor], args: Any) -> int:
    if name in LOOKUPS:
        return 2 * _size(written) + _size(x for x in given if not x.is_floating_point())
    if name in SCATTERS:
        source = _tensors(args[1:])
        return _size(source) + _size(x for x in source if x.is_floating_point())
    if name in FILLS:
        return _size(written)
    read = _size(given) - (_size(written) if name == "copy_" else 0)  # which reads no target
    return read + _size(written)


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _kind(name: str) -> Kind:
    """A product with weights, or of the attention, which plain PyTorch also writes as products."""
    if name in ("mm", "addmm"):
        return "product"
    return "attention" if name.startswith(("bmm", "baddbmm", "_scaled_dot_product")) else "other"
