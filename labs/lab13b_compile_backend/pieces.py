"""A step in parts: compile its pieces, run them with attention between, write it down.

In:  a graph of parts (split.py), and a compiler's name. Out: a `Step` that can be called, and that
     a file can hold.

`eager` runs a piece as its graph stands, op by op: what a machine without a C++ compiler can do,
and what tests do. `inductor` has PyTorch's own compiler write kernels for it, for any number of
tokens; what it makes goes into the cache under the piece's key. It is a pickle, as PyTorch makes
it: point a cache at no folder that others write to.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from labs.lab13b_compile_backend.split import is_attention
from labs.lab13b_compile_backend.written import read, written
from mini_engine.cuda.attention import Attend

COMPILERS = ("eager", "inductor")
Run = Callable[..., Any]


@dataclass
class Step:
    """What one trace leaves."""

    inputs: tuple[str, ...]  # names, in the order of the graph's; "T" is the number of tokens
    graph: GraphModule  # calls the parts
    keys: dict[str, str]  # of the pieces (`cache.piece_key`); all other parts are attentions
    matches: int  # of the pass
    attend: Attend | None = None  # of the step that is running

    def install(self, compiled: dict[str, Run]) -> None:
        """Put what was compiled in the place of the pieces, by key, and the attention of whatever
        step is running in the place of the marker."""

        def attend_now(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            assert self.attend, "a step runs with an attention"
            return self.attend(q, keys, values)

        for name, part in parts(self.graph).items():
            if name in self.keys:
                delattr(self.graph, name)
                setattr(self.graph, name, compiled[self.keys[name]])
                continue
            for node in part.graph.nodes:
                if is_attention(node):
                    node.target = attend_now
            part.recompile()

    def to_bytes(self) -> bytes:
        """Before `install`. Raises ValueError as `written` does."""
        return json.dumps(
            {
                "inputs": self.inputs,
                "keys": self.keys,
                "matches": self.matches,
                "graph": written(self.graph),
                "parts": {name: written(part) for name, part in parts(self.graph).items()},
            }
        ).encode()

    @staticmethod
    def from_bytes(content: bytes) -> Step:
        """Raises ValueError for what `read` refuses."""
        stored = json.loads(content)
        root = torch.nn.Module()
        for name, nodes in stored["parts"].items():
            root.add_module(name, read(nodes))
        return Step(
            tuple(stored["inputs"]), read(stored["graph"], root), stored["keys"], stored["matches"]
        )


def parts(graph: GraphModule) -> dict[str, GraphModule]:
    """What a graph of parts calls, by name, in order."""
    return dict(graph.named_children())  # type: ignore[arg-type]


def compiled(piece: GraphModule, compiler: str) -> tuple[Run, bytes]:
    """The piece compiled, and what a later start needs in order to have it at once."""
    if compiler == "eager":
        return piece, b""
    from torch._inductor import standalone_compile

    one, output = _returns_one(piece), next(iter(reversed(piece.graph.nodes)))
    if one:
        output.args = ((output.args[0],),)  # Inductor returns several
        piece.recompile()
    inputs = [n.meta["example_value"] for n in piece.graph.nodes if n.op == "placeholder"]
    artifact = standalone_compile(piece, inputs, dynamic_shapes="from_graph")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "piece")
        artifact.save(path=str(path), format="binary")
        return _called(artifact, one), path.read_bytes()


def loaded(content: bytes, piece: GraphModule, compiler: str) -> Run:
    """What `compiled` gave, from what it left."""
    if compiler == "eager":
        return piece
    from torch._inductor.standalone_compile import CompiledArtifact

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "piece")
        path.write_bytes(content)
        artifact = CompiledArtifact.load(path=str(path), format="binary")
    return _called(artifact, _returns_one(piece))


def why_not(compiler: str, device: torch.device) -> str | None:
    """Why this compiler cannot run here, in one line; None where it can."""
    if compiler not in COMPILERS:
        return f"compiler {compiler!r}: expected one of {', '.join(COMPILERS)}"
    wanted = [os.environ.get("CXX", "g++"), "clang++"]
    if compiler == "inductor" and device.type == "cpu" and not any(map(shutil.which, wanted)):
        return f"on a CPU Inductor writes C++ and finds no {' or '.join(wanted)}: use eager"
    return None


def _returns_one(piece: GraphModule) -> bool:
    output = next(iter(reversed(piece.graph.nodes)))
    return not isinstance(output.args[0], tuple)


def _called(artifact: Any, one: bool) -> Run:
    return (lambda *values: artifact(*values)[0]) if one else artifact
