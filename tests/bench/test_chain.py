"""The step taken apart: what is kept runs, what is left out does not, and the differences are what
they say."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from mini_engine.bench import chain as module  # noqa: E402
from mini_engine.bench.chain import KERNELS, OURS, ChainGraph, Kept, chain  # noqa: E402
from mini_engine.bench.decode_setup import DecodeSetup, build_setup  # noqa: E402
from mini_engine.bench.our_variants import FusedGraph  # noqa: E402
from mini_engine.bench.timing import Lap  # noqa: E402
from mini_engine.cli.measuring import tiny_shape  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.weights import random_weights  # noqa: E402
from mini_engine.records.rows import Interval  # noqa: E402
from mini_engine.step.oplists import StepShape, step_ops  # noqa: E402

CONTEXT, LAYERS = 20, 2
COSTS_US = dict(zip(KERNELS, (7.0, 11.0, 2.0, 13.0, 3.0, 71.0, 1.0), strict=True))


@pytest.fixture(scope="module")
def setup() -> DecodeSetup:
    backend, config = graphs_for("cpu"), replace(tiny_shape(), dtype="bfloat16")
    weights = random_weights(config, backend.device, torch.bfloat16, seed=0)
    return build_setup(backend, weights, 1, CONTEXT, 64)


class Watched(TorchDispatchMode):
    """What gets through."""

    def __init__(self, names: Kept) -> None:
        super().__init__()
        self.names, self.ran = names, Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name().startswith(OURS):
            self.ran[self.names.name_of(func.name(), args)] += 1
        return func(*args, **(kwargs or {}))


def test_the_links_are_the_kernels_of_the_five_kernel_step(setup: DecodeSetup) -> None:
    ops = step_ops(setup.model.config, StepShape.decode(1, CONTEXT), "fused5")
    assert list(dict.fromkeys(op.name for op in ops))[1:] == list(KERNELS)  # the first: embed


@pytest.mark.parametrize("kernel", KERNELS)
def test_alone_and_left_out_run_just_the_kernels_that_they_say(
    setup: DecodeSetup, kernel: str
) -> None:
    often = {name: LAYERS if name in KERNELS[:5] else 1 for name in KERNELS}
    others = frozenset(KERNELS) - {kernel}
    for names in (frozenset({kernel}), others):
        graph = ChainGraph(setup, names, pdl=False, steps_a_call=1)
        with torch.no_grad(), Watched(graph.kept) as watched:
            graph._forward(1)
        assert watched.ran == {name: often[name] for name in names}


def test_what_a_left_out_kernel_should_have_written_is_random_and_no_wild_index(
    setup: DecodeSetup,
) -> None:
    """Token ids come from the head's partials: without the head they must still be token ids."""
    graph = ChainGraph(setup, frozenset(KERNELS) - {"norm_lm_head"}, pdl=False)
    with torch.no_grad():
        graph.prepare()
        graph.rewind()
        for _ in range(3):
            graph.step()
    assert graph.inputs.input_ids.tolist() == [0]
    with Kept(frozenset(), frozenset()):
        made = torch.ones(8).new_empty(1000)
    assert made.std().item() == pytest.approx(1, abs=0.2)


def test_the_graph_of_a_step_holds_its_kernels_and_nothing_that_makes_numbers(
    setup: DecodeSetup,
) -> None:
    """The real step has no such node between two kernels, and what it computes is the same."""
    real = FusedGraph(setup, 5, False, 2)
    whole = ChainGraph(setup, frozenset(KERNELS), pdl=False, steps_a_call=2)
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


def test_a_graph_without_the_products_reads_random_numbers_at_every_replay(
    setup: DecodeSetup,
) -> None:
    graph = ChainGraph(setup, frozenset(), pdl=False)
    with torch.no_grad():
        graph.prepare()
        for _ in range(2):
            graph.step()
            for logits in graph.logits():
                assert logits.std().item() == pytest.approx(1, abs=0.3)


@pytest.fixture
def known_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes 100 µs and what its kernels cost, and its graphs are not captured."""

    def laps(_backend: Any, one: ChainGraph, other: ChainGraph, **_more: int) -> Any:
        def us(graph: ChainGraph) -> float:
            own = ((n, LAYERS if n in KERNELS[:5] else 1) for n in graph.kept.names)
            return 100 + sum(COSTS_US[name] * count for name, count in own)

        return [Lap(us(one), 0)] * 2, [Lap(us(other), 0)] * 2

    monkeypatch.setattr(module, "paired_laps", laps)
    monkeypatch.setattr(ChainGraph, "prepare", lambda self: None)


@pytest.mark.usefixtures("known_times")
def test_a_link_is_what_the_kernel_costs_and_follows_from_its_bytes(setup: DecodeSetup) -> None:
    links = list(chain(setup.backend, setup, 2.0, KERNELS))
    assert [link.kernel for link in links] == list(KERNELS)
    for link in links:
        assert link.alone.median == pytest.approx(COSTS_US[link.kernel])
        assert link.left_out.median == pytest.approx(COSTS_US[link.kernel])
        assert link.gb_s * link.alone.median * 1e3 == pytest.approx(link.bytes)
        assert link.latency_us == pytest.approx(link.alone.median - link.bytes / 2e3)


@pytest.mark.usefixtures("known_times")
def test_only_the_kernels_that_were_asked_for_are_timed(setup: DecodeSetup) -> None:
    links = list(chain(setup.backend, setup, 2.0, ["argmax"]))
    assert [link.kernel for link in links] == ["argmax"]
    assert not list(chain(setup.backend, setup, 2.0, []))


def test_a_kernel_whose_time_is_lost_in_the_noise_has_no_rate(setup: DecodeSetup) -> None:
    op, _ = module.kernels_of(setup)["argmax"]
    for median, low in ((-0.2, -0.9), (0.1, -0.3)):
        lost = Interval(median, low, 0.4, 8)
        assert module._link(op, 1, lost, lost, 4000.0).gb_s == 0


def test_the_real_chain_on_the_emulator_ends_with_a_time_for_each(setup: DecodeSetup) -> None:
    (link,) = chain(setup.backend, setup, 10.0, ["down_proj_add"], steps=1, rounds=2)
    written = link.as_json()
    assert written["kernel"] == "down_proj_add"
    assert written["launches"] == LAYERS
    assert written["alone"]["samples"] == 2
