"""Keys, and files that are what they say.

In:  what a result depends on. Out: a key that changes with any of it, and a folder where results
     lie under their keys.

Two keys, because two things are saved. A *step* is known before anything is traced: by the
signature of its inputs, the weights' shapes, the options, versions, and our own source, for Dynamo
may have walked into any of it. If its file is there, nobody traces. A *piece* is known by its
graph: equal ones are compiled once, within a model and between models.

A file is written beside its place and moved there whole. Its first line says what it is, under
which key, and the hash of the rest; a file that says otherwise is not used, and a line tells so.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from labs.lab13b_compile_backend.guards import described
from mini_engine.cuda import attention
from mini_engine.files import write_whole

WHAT = "launch-bound compile cache, version 1"
SOURCES = (Path(attention.__file__).parent, Path(__file__).parent)  # mini_engine/cuda, and this lab
Tell = Callable[[str], object]


def digest(*parts: object) -> str:
    """A hash of the texts of `parts`, in their order."""
    return hashlib.sha256(repr([str(part) for part in parts]).encode()).hexdigest()[:32]


@cache
def versions() -> tuple[str, ...]:
    """What may change what a graph means or how it is compiled, though the graph is the same.

    A trace, besides, may stand on any line of `mini_engine/cuda` and of this folder.
    """
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = "none"
    files = [path for folder in SOURCES for path in sorted(folder.rglob("*.py"))]
    source = hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()
    return (
        f"torch {torch.__version__}",
        f"triton {triton}",
        f"python {platform.python_version()}",
        f"{platform.machine()}, {gpu}",
        f"source {source}",
    )


def piece_key(piece: GraphModule, compiler: str, versions: tuple[str, ...]) -> str:
    """Of a compiled piece: equal for two graphs that do the same to inputs of the same kind.

    Nodes and symbols go by the order in which they come, not by name: layer 3 and layer 7 are equal
    then. Weights are inputs and only their shapes count; a constant inside counts with its value.
    """
    numbers: dict[Node, Any] = {node: f"%{i}" for i, node in enumerate(piece.graph.nodes)}
    lines: list[object] = [compiler, versions]
    for node in piece.graph.nodes:
        arguments = map_arg((node.args, node.kwargs), numbers.__getitem__)
        line = f"{node.op} {_called(node)} {arguments}"
        if node.op in ("placeholder", "output"):
            line = f"{node.op} {_kind(node.meta.get('example_value'))} {arguments}"
        elif node.op == "get_attr":
            constant = getattr(piece, str(node.target))
            line = f"get_attr {_kind(constant)} {constant.tolist()}"
        lines.append(line)
    return digest(*_symbols_by_order("\n".join(map(str, lines))))


def _called(node: Node) -> str:
    """What a node calls, by name. `str` of a function says where it lies in memory, which is
    another place in every process."""
    target: Any = node.target
    return target if isinstance(target, str) else f"{target.__module__}.{target.__qualname__}"


def _kind(value: Any) -> str:
    return described("", value) if isinstance(value, Tensor) else f"{type(value).__name__} {value}"


def _symbols_by_order(text: str) -> list[str]:
    """s44 and s9 become t0 and t1, and so does another model's s77."""
    order: dict[str, str] = {}
    return [re.sub(r"\bs\d+\b", lambda found: order.setdefault(found[0], f"t{len(order)}"), text)]


class Cache:
    """A folder of results."""

    def __init__(self, folder: str | Path, tell: Tell) -> None:
        self.folder, self._tell = Path(folder), tell

    def read(self, key: str) -> bytes | None:
        """What was written under the key. None, where there is no file; None, and a line to `tell`
        that names the file, where it is not what was written: harmed, or a folder."""
        path = self._path(key)
        if not path.exists():
            return None
        head, _, content = (b"" if path.is_dir() else path.read_bytes()).partition(b"\n")
        if head != _head(key, content):
            self._tell(f"{path} is not what {WHAT} wrote there: it is made anew")
            return None
        return content

    def write(self, key: str, content: bytes) -> None:
        """All of it or nothing: another process may be reading, and this one may die."""
        write_whole(self._path(key), _head(key, content) + b"\n" + content)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.compiled"


def _head(key: str, content: bytes) -> bytes:
    """The first line of a file."""
    sha256 = hashlib.sha256(content).hexdigest()
    return json.dumps({"what": WHAT, "key": key, "sha256": sha256}).encode()
