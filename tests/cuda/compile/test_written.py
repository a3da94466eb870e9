"""A graph as JSON: read again it does the same, and a file can name nothing but what we list."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from torch.fx import Graph, GraphModule, symbolic_trace  # noqa: E402
from torch.nn import functional  # noqa: E402

from mini_engine.cuda.compile.written import read, written  # noqa: E402


def program(x: torch.Tensor, weight: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
    """What decoders are made of: slices, tuples, lists, dtypes, keywords, numbers."""
    left, right = torch.functional.split(functional.linear(x, weight), [3, 5], dim=1)
    wide = right.to(torch.float64)[:, None, 1:].square().mean(-1, keepdim=True) + 1e-6
    return torch.cat((left, left * 0.5), dim=-1).view(count, -1), wide.float().flatten(1)


def test_a_graph_that_was_written_and_read_does_the_same() -> None:
    graph = symbolic_trace(program)
    nodes = json.loads(json.dumps(written(graph)))
    again = read(nodes)
    generator = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(shape, generator=generator) for shape in ((4, 6), (8, 6)))
    for one, other in zip(graph(x, weight, 4), again(x, weight, 4), strict=True):
        assert torch.equal(one, other)
    assert json.loads(json.dumps(written(again))) == nodes


@pytest.mark.parametrize(
    "node",
    [
        ["call_function", "load", ["weights.pt"], {}],
        ["call_function", "os.system", ["true"], {}],
        ["call_method", "__class__", [], {}],
        ["get_attr", "weight", [], {}],
        ["run", "x", [], {}],
    ],
    ids=lambda node: node[1],
)
def test_a_file_that_names_anything_else_is_refused(node: list[object]) -> None:
    with pytest.raises(ValueError, match=str(node[1])):
        read([["placeholder", "x", [], {}], node])  # type: ignore[list-item]


def test_a_graph_with_a_constant_or_a_foreign_function_is_not_written() -> None:
    root, graph = torch.nn.Module(), Graph()
    root.register_buffer("held", torch.ones(2))
    graph.output((graph.get_attr("held"),))
    with pytest.raises(ValueError, match="get_attr held"):
        written(GraphModule(root, graph))
    with pytest.raises(ValueError, match="fft_fft"):
        written(symbolic_trace(lambda x: torch.fft.fft(x)))
    with pytest.raises(ValueError, match="cannot be written"):
        written(symbolic_trace(lambda x: x.to(device=torch.device("cpu"))))
