"""Several GPUs in a step: what a sum takes on a link, and what a rank's step is made of."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine import Server
from mini_engine.model.config import named_shape
from mini_engine.step.cards import load_spec
from mini_engine.step.kernels import StepShape, step_ops, step_parts
from mini_engine.step.link import link_us
from mini_engine.step.run import MODES, Mode, step_time
from mini_engine.step.step_model import StepModel
from mini_engine.step.storage import stored_as

H100 = load_spec("h100")
NAMES = ("qwen3-8b", "qwen3-30b-a3b", "llama-2-70b")


def sum_us(message: float, ranks: int, card: str = "h100") -> float:
    return float(link_us("all_reduce", 2 * message, ranks, load_spec(card)))


@pytest.mark.parametrize(
    ("message", "took_us"),
    [(512, (3.7, 4.8, 5.9)), (32768, (4.5, 4.8, 7.8)), (262144, (7.9, 13.9, 16.7)),
     (1 << 20, (19.9, 31.1, 33.8))],
)  # fmt: skip
def test_a_sum_over_nvlink_takes_what_was_measured(
    message: int, took_us: tuple[float, ...]
) -> None:
    """2, 4 and 8 H100: https://github.com/sgl-project/sglang/pull/2904."""
    for ranks, measured in zip((2, 4, 8), took_us, strict=True):
        assert sum_us(message, ranks) == pytest.approx(measured, rel=0.25)


def test_a_ring_of_eight_over_pcie_takes_fourteen_hops() -> None:
    assert sum_us(8, 8, "rtx4090") == pytest.approx(42, rel=0.01)
    assert sum_us(8, 2, "rtx4090") < sum_us(8, 4, "rtx4090") / 3


@given(st.integers(1, 1 << 24), st.integers(2, 8), st.sampled_from(["h100", "l40s", "a100"]))
def test_a_sum_grows_with_its_message_and_with_the_ranks(n: int, ranks: int, card: str) -> None:
    assert sum_us(n, ranks, card) < sum_us(n + 4096, ranks, card)
    assert sum_us(n, ranks, card) < sum_us(n, ranks + 1, card)


@pytest.mark.parametrize("style", ["vllm", "sglang", "nano-vllm", "fused9", "fused5", "hf56"])
def test_a_layer_of_a_rank_has_two_sums_of_a_row_for_each_token(style: str) -> None:
    config, shape = named_shape("qwen3-8b"), StepShape.decode(3, 100)
    one, four = (step_parts(c, shape, style) for c in (config, config.shard(4)))
    sums = [op for op in four.layer if op.kind == "all_reduce"]
    # a narrower product needs no `o_proj_reduce`
    names = [[op.name for op in ops if not op.name.endswith("reduce")]
             for ops in (one.layer, [op for op in four.layer if op not in sums])]  # fmt: skip
    assert names[0] == names[1]
    assert [op.bytes for op in sums] == [2 * 3 * config.hidden_size * 2] * 2
    gather = [op for op in four.tail if op.kind == "all_gather"]
    assert [op.bytes for op in gather] == [3 * 2 * config.vocab_size * 5 / 4]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_together_read_what_one_gpu_reads(name: str, ranks: int) -> None:
    """KV heads that must stand on several ranks are read by each: a little more."""
    whole = named_shape(name)
    read, rank = stored_as(whole).read, stored_as(whole.shard(ranks)).read
    assert read < ranks * rank < 1.06 * read
    ops = step_ops(whole.shard(ranks), StepShape.decode(1, 1), "vllm")
    products = sum(op.flops for op in ops if op.kind == "product")
    alone = step_ops(whole, StepShape.decode(1, 1), "vllm")
    assert ranks * products == pytest.approx(
        sum(op.flops for op in alone if op.kind == "product"), rel=0.2
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 64), st.integers(1, 4000))
def test_the_step_model_says_what_the_kernels_one_by_one_say(
    name: str, mode: Mode, ranks: int, batch: int, context: int
) -> None:
    config = named_shape(name).shard(ranks) if ranks > 1 else named_shape(name)
    shape = StepShape.decode(batch, context)
    ops = step_ops(config, shape, H100.ops)
    assert StepModel(config, H100).itl_us(mode, shape) == pytest.approx(
        step_time(ops, H100, mode, batch).itl_us
    )


def test_four_cards_are_faster_than_one_and_slower_than_a_quarter() -> None:
    one, four = (Server("qwen3-8b", "h100", tp=tp) for tp in (1, 4))
    assert 0.25 < four.itl(8).ms / one.itl(8).ms < 0.6
    small, shared = (Server("qwen3-0.6b", "l40s", tp=tp).itl().ms for tp in (1, 8))
    assert shared > small  # sums over PCIe take longer than the weights that they save


def test_experts_cost_by_those_that_are_touched_and_padding_touches_those_of_one_token() -> None:
    config = named_shape("qwen3-30b-a3b")
    costs, shape = StepModel(config, H100), StepShape.decode(16, 1000)
    few, expected, every = (costs.itl_us("full", replace(shape, touched=n)) for n in (8, None, 128))
    assert few < expected / 2
    assert expected < every
    padded = StepShape(16, 16, 16_000, 16_000, real_reqs=9)
    assert padded.sizes(config)[-1] == config.experts.touched(10)
    assert shape.sizes(config)[-1] == config.experts.touched(16)
    assert StepShape.decode(16, 1000).sizes(named_shape("qwen3-8b"))[-1] == 0


def test_sglang_launches_as_many_kernels_for_30b_a3b_as_nsys_counts() -> None:
    """(428,922 - 107,898) / 384 steps at batch 1, YiconRain/profiling@311296ef."""
    ops = step_ops(named_shape("qwen3-30b-a3b"), StepShape.decode(1, 300), "sglang")
    assert len(ops) == (428_922 - 107_898) / 384 == 836
