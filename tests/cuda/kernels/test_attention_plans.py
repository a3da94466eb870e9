"""What a plan makes of a shape, before a launch: splits, who combines, what is read ahead."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter is on in this process", allow_module_level=True)

from mini_engine.cuda.kernels import attention, fused_attention
from mini_engine.cuda.kernels.ahead import shares
from mini_engine.cuda.kernels.combine import fits_registers
from mini_engine.cuda.kernels.paged import Heads
from mini_engine.cuda.kernels.plans import PLANS, plan_of


@pytest.mark.parametrize("context", [1, 16, 100, 8192])
@pytest.mark.parametrize("requests", [1, 8, 200])
def test_splits_are_no_more_than_tiles_nor_than_the_combine_can_hold(
    context: int, requests: int
) -> None:
    splits = attention.num_splits(context, requests, 8, 528)
    assert 1 <= splits <= min(attention.MAX_SPLITS, -(-context // attention.TILE))
    for name, plan in PLANS.items():
        splits = fused_attention.num_splits(context, requests, 8, 528, name)
        past = context - 1 if plan.current_apart else context
        tiles = max(1, -(-past // plan.attention_tile)) + plan.current_apart
        assert plan.fewest_splits <= splits <= min(fused_attention.MAX_SPLITS, tiles)


def test_in_a_room_of_560_tokens_every_split_has_one_tile_but_the_base_plan_some_have_two() -> None:
    heads = Heads(16, 8, 128, 16)
    for name, splits in (("base", 32), ("attention", 18), ("attention-apart", 10)):
        assert fused_attention.num_splits(560, 1, 8, 528, name) == splits
        options = fused_attention.attention_options(heads, splits, 560, plan_of(name))
        assert options["TOGETHER"] == (name != "base")
        assert options.get("ONE_TILE", True)
    apart = plan_of("attention-apart")
    assert not fused_attention.attention_options(heads, 9, 560, apart)["ONE_TILE"]


@pytest.mark.parametrize(
    ("group", "splits", "head_dim", "warps", "fits"),
    [(2, 18, 128, 4, True), (4, 10, 64, 8, True), (7, 10, 128, 8, True), (7, 17, 128, 8, False)],
)
def test_a_group_is_combined_together_where_its_partials_fit_registers(
    group: int, splits: int, head_dim: int, warps: int, fits: bool
) -> None:
    assert fits_registers(Heads(group, 1, head_dim, 16), splits, warps) == fits


def test_what_is_read_ahead_is_shared_in_whole_lines() -> None:
    assert shares(8 << 20, 8 << 20, 1, 512) == {"SHARE": 16_384, "SPANS": 1, "GAP": 8 << 20}
    assert shares(48 << 20, 12 << 20, 2, 80) == {"SHARE": 78_592, "SPANS": 2, "GAP": 24 << 20}
    nothing = {"SHARE": 0, "SPANS": 1, "GAP": 0}
    assert shares(100, 12 << 20, 2, 80) == shares(48 << 20, 0, 2, 80) == nothing
    assert shares(2 * 1000 * 1001, 1 << 20, 2, 1) == nothing, "a gap that is not aligned"
