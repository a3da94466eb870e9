"""The step taken apart: one kernel is left out, all others run, and the difference is told."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from mini_engine.bench import chain as module  # noqa: E402
from mini_engine.bench.chain import OURS, LeftOut, ShorterGraph, chain  # noqa: E402
from mini_engine.bench.decode_setup import DecodeSetup, build_setup  # noqa: E402
from mini_engine.bench.timing import Lap  # noqa: E402
from mini_engine.bench.variants import FusedGraph  # noqa: E402
from mini_engine.cli.measuring import tiny_shape  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.weights import random_weights  # noqa: E402

CONTEXT, LAYERS = 20, 2
KERNELS = ("norm_qkv_proj", "rope_kv_write_attention", "o_proj_add", "norm_gate_up_silu_mul",
           "down_proj_add", "norm_lm_head", "argmax")  # fmt: skip
COSTS_US = dict(zip(KERNELS, (7.0, 11.0, 2.0, 13.0, 3.0, 71.0, 1.0), strict=True))
OFTEN = {name: LAYERS if name in KERNELS[:5] else 1 for name in KERNELS}


@pytest.fixture(scope="module")
def setup() -> DecodeSetup:
    backend, config = graphs_for("cpu"), replace(tiny_shape(), dtype="bfloat16")
    weights = random_weights(config, backend.device, torch.bfloat16, seed=0)
    return build_setup(backend, weights, 1, CONTEXT, 64)


class Watched(TorchDispatchMode):
    """What gets through."""

    def __init__(self, names: LeftOut) -> None:
        super().__init__()
        self.names, self.ran = names, Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name().startswith(OURS):
            self.ran[self.names.name_of(func.name(), args)] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kernel", KERNELS)
def test_all_kernels_run_but_the_one_that_is_left_out(setup: DecodeSetup, kernel: str) -> None:
    graph = ShorterGraph(setup, kernel, False, 1)
    with torch.no_grad(), Watched(graph.left_out) as watched:
        graph._forward(1)
    assert watched.ran == {name: often for name, often in OFTEN.items() if name != kernel}


def test_what_a_left_out_kernel_should_have_written_is_random_and_no_wild_index(
    setup: DecodeSetup,
) -> None:
    """Token ids come from the head's partials: without the head they must still be token ids."""
    graph = ShorterGraph(setup, "norm_lm_head", False, 2)
    with torch.no_grad():
        graph.prepare()
        graph.rewind()
        for _ in range(3):
            graph.step()
    assert graph.inputs.input_ids.tolist() == [0]
    assert all(logits.std().item() == pytest.approx(1, abs=0.3) for logits in graph.logits())


def test_the_graph_of_a_step_holds_its_kernels_and_nothing_that_makes_numbers(
    setup: DecodeSetup,
) -> None:
    real, whole = FusedGraph(setup, 5, False, 2), ShorterGraph(setup, "none of them", False, 2)
    with torch.no_grad():
        for graph in (real, whole):
            graph.prepare()
            graph.rewind()
            graph.step()
    assert ops_of(whole) == ops_of(real)
    for mine, theirs in zip(whole.logits(), real.logits(), strict=True):
        assert torch.equal(mine, theirs)


def ops_of(graph: FusedGraph) -> tuple[str, ...]:
    (one,) = graph.graphs.captured[graph.setup.batch].graphs
    return one.ops


def test_a_link_is_what_the_step_loses_beside_what_its_bytes_take(
    setup: DecodeSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def laps(_backend: Any, _whole: Any, shorter: ShorterGraph, **_more: int) -> Any:
        lost = COSTS_US[shorter.left_out.name] * OFTEN[shorter.left_out.name]
        return [Lap(500.0, 0)] * 2, [Lap(500.0 - lost, 0)] * 2

    monkeypatch.setattr(module, "paired_laps", laps)
    monkeypatch.setattr(FusedGraph, "prepare", lambda self: None)
    links = list(chain(setup, 2.0))
    assert [link.kernel for link in links] == list(KERNELS)
    for link in links:
        assert link.left_out.median == pytest.approx(COSTS_US[link.kernel])
        assert link.launches == OFTEN[link.kernel]
        assert link.copy_us == pytest.approx(link.bytes / 2e3)
