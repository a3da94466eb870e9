"""What a step of one token waits for: instructions, barriers and trips to memory after `pdl_wait`.

With programmatic dependent launch the weights are on chip when the kernel before ends; what each
kernel still does then, all kernels do one after the other. The counts are static, of the listing:
a loop's body counts once, and so do both sides of a branch (`tests/support/machine_code.py`). The
ceilings are what Triton 3.6 and 3.7 make of the kernels, with a little room, so that a change that
costs something shows. Where a change gains, lower them.

The table: python -m pytest tests/cuda/kernels/test_after_the_wait.py -rP | grep after
"""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from tests.cuda.kernels.test_ahead_of_time import CASES, compiled, named
from tests.support.kernel_shapes import Case

ROOM = 1.1  # a compiler's next version may take a few instructions more
# instructions, barriers, trips: the larger of Triton 3.6.0's and 3.7.1's. Two models that share a
# kernel share its name.
CEILINGS = {
    "qwen3-0.6b norm_qkv_m1": (245, 2, 1),
    "qwen3-0.6b fused_attention": (905, 25, 5),
    "qwen3-0.6b o_add_m1": (102, 2, 2),
    "qwen3-0.6b norm_gate_up_m1": (264, 2, 1),
    "qwen3-0.6b down_add_m1": (113, 2, 2),
    "qwen3-0.6b norm_lm_head_m1": (793, 14, 7),
    "qwen3-0.6b pick_and_advance": (373, 5, 8),
    "qwen3-1.7b norm_qkv_m1": (246, 2, 1),
    "qwen3-1.7b o_add_m1": (132, 2, 2),
    "qwen3-1.7b norm_gate_up_m1": (267, 2, 1),
    "qwen3-1.7b down_add_m1": (151, 2, 3),
    "qwen3-1.7b norm_lm_head_m1": (799, 14, 9),
    "llama-3.2-1b norm_qkv_m1": (333, 2, 2),
    "llama-3.2-1b fused_attention": (951, 29, 5),
    "llama-3.2-1b norm_gate_up_m1": (267, 2, 1),
    "llama-3.2-1b down_add_m1": (132, 2, 3),
    "llama-3.2-1b norm_lm_head_m1": (799, 14, 9),
    "llama-3.2-1b pick_and_advance": (328, 5, 7),
}
# The kernels of a step of five kernels a layer, and its head.
STEP = ("norm_qkv_m1", "fused_attention", "o_add_m1", "norm_gate_up_m1", "down_add_m1")
STEP += ("norm_lm_head_m1", "pick_and_advance")
COUNTED = [c for c in CASES if c.name.partition(" ")[2] in STEP]


def test_every_kernel_of_the_step_has_a_ceiling() -> None:
    assert {c.name for c in COUNTED} == set(CEILINGS)
    assert {name.partition(" ")[2] for name in CEILINGS} == set(STEP)


@pytest.mark.parametrize("c", COUNTED, ids=named)
def test_what_a_kernel_does_after_the_wait_stays_below_its_ceiling(c: Case) -> None:
    made = compiled(c, 90, True)
    instructions, barriers, trips = CEILINGS[c.name]
    print(
        f"{c.name:28} after the wait {made.instructions_after_wait:5} instructions a warp "
        f"{made.barriers_after_wait:3} barriers {made.trips:3} trips; "
        f"{made.bytes_above_wait / 1024:5.1f} KiB a program above it"
    )
    assert made.instructions_after_wait <= instructions * ROOM
    assert made.barriers_after_wait <= barriers
    assert made.trips <= trips + 1
