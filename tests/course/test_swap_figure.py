"""What swapping costs against computing again, in the figure of deeper/swap-or-again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from course.draw.ch10_swap import again_pays, cost
from mini_engine.step.kernels import StepShape
from mini_engine.step.storage import stored_as

SMALL = cost("qwen3-0.6b", "PCIe 5.0")


def test_swapping_moves_whole_blocks_over_the_link_twice() -> None:
    spec, config = SMALL.steps.spec, SMALL.steps.config
    assert SMALL.block_bytes == 16 * stored_as(config).kv_bytes_per_token == 1_835_008
    moved = 2 * 63 * SMALL.block_bytes  # 1,000 tokens are 63 blocks
    assert SMALL.swap_us(1000) == pytest.approx(moved / (spec.link_gb_s * 1e3))
    assert SMALL.swap_us(1008) == SMALL.swap_us(1000) < SMALL.swap_us(1009)


def test_small_blocks_cost_the_cpu_more_than_the_link() -> None:
    tiny = replace(SMALL, block_size=1)  # 115 KB pass PCIe 5.0 in 2 us; starting a copy takes 6
    assert tiny.copy_us(10) == 10 * SMALL.steps.spec.copy_us
    assert tiny.swap_us(1024) > SMALL.swap_us(1024)


def test_computing_again_is_what_its_steps_take_beyond_the_decode_steps_in_their_place() -> None:
    steps = SMALL.steps
    chunk = steps.itl_us("piecewise", StepShape(304, 1, 300, 300 * 301 // 2, 1))  # rung of 304
    decode = steps.itl_us("full", StepShape.decode(1, 300))
    assert SMALL.recompute_us(300) == pytest.approx(chunk - decode)
    twice = SMALL.recompute_us(2 * SMALL.budget)
    assert twice > 2 * SMALL.recompute_us(SMALL.budget)  # the second chunk attends to the first


def test_over_pcie_computing_again_wins_for_short_texts_and_for_very_long_ones() -> None:
    first, last = again_pays("qwen3-0.6b", "PCIe 5.0")
    for model in ("qwen3-0.6b", "qwen3-8b"):
        assert again_pays(model, "NVLink-C2C") == ()
    assert SMALL.saves_us(first - 16) > 0 >= SMALL.saves_us(first)
    assert SMALL.saves_us(last - 16) <= 0 < SMALL.saves_us(last)
    # for the large model computing again wins in a few steps of no size, and never later
    assert max(again_pays("qwen3-8b", "PCIe 5.0")) < 256
