"""What the compiler makes of the prefill kernel's walk over the keys: bf16, heads of 64 and 128.

A program's time is that of its loops, so these are looked at: products on tensor cores, how keys
and values come, and what waits for what, for 128 rows and 64 keys. That nothing spills:
test_ahead_of_time.py has the wider heads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter is on in this process", allow_module_level=True)

from hypothesis import given
from hypothesis import strategies as st

from mini_engine.cuda.kernels.prefill import num_tiles, tile_options
from mini_engine.model.config import named_shape
from tests.cuda.kernels.test_ahead_of_time import CASES, compiled
from tests.support.kernel_shapes import Case, cases

BOTH = pytest.mark.parametrize(
    ("head_dim", "capability"), [(128, 80), (128, 90), (64, 80), (64, 90)]
)


def case_of(head_dim: int) -> Case:
    """The one that test_ahead_of_time.py compiles anyway, where it does."""
    if head_dim == 64:
        return next(c for c in cases(named_shape("llama-3.2-1b")) if c.name == "prefill")
    return next(c for c in CASES if c.name.endswith("prefill"))


def loops(sass: Sequence[str]) -> list[Sequence[str]]:
    """Each from the place that a branch goes back to up to that branch. An instruction has 16
    bytes, so its place tells its address."""
    found = []
    for place, line in enumerate(sass):
        target = re.search(r"\bBRA\b.*\b0x([0-9a-f]+)$", line)
        if target and (first := int(target[1], 16) // 16) < place:
            found.append(sass[first : place + 1])
    return found


def walks(head_dim: int, capability: int) -> tuple[Sequence[str], Sequence[str]]:
    """The loops over keys that all rows see, and over those on the diagonal."""
    made = compiled(case_of(head_dim), capability, capability >= 90)
    assert made.spilled_bytes == 0
    whole, diagonal = (one for one in loops(made.sass) if count(one, "MMA"))
    return whole, diagonal


def count(lines: Sequence[str], pattern: str) -> int:
    return sum(bool(re.search(pattern, line)) for line in lines)


@BOTH
def test_tensor_cores_do_all_the_products(head_dim: int, capability: int) -> None:
    """Of a warp's 16 rows with 64 keys, twice: mma is 16 x 8 x 16; wgmma, four warps together,
    takes 16 of the inner dimension at once."""
    for walk in walks(head_dim, capability):
        if capability >= 90:
            assert count(walk, r"\bHGMMA") == head_dim // 16 + 64 // 16
        else:
            assert count(walk, r"\bHMMA\.16816") == 2 * (64 // 8) * (head_dim // 16)
        assert count(walk, r"\bMUFU\.EX2") == 16 * 64 // 32 + 2  # weights, and `keep` of two rows


@BOTH
def test_keys_and_values_come_sixteen_bytes_at_a_time_while_the_tile_before_is_multiplied(
    head_dim: int, capability: int
) -> None:
    whole, _ = walks(head_dim, capability)
    threads = 32 * tile_options(head_dim, 2, capability)["num_warps"]
    assert count(whole, r"LDGSTS\.E\.BYPASS\.128") == 2 * 64 * head_dim * 2 // (16 * threads)
    assert not count(whole, r"\bSTS")  # nothing goes through registers, weights included
    assert not count(whole, r"\bLDG\.\S*(64|128)")  # the block table alone is loaded into them
    waits = [line for line in whole if re.search(r"\bDEPBAR\.LE SB0", line)]
    assert [line.rpartition(" ")[2] for line in waits] == ["0x2"]  # one tile is under way


@pytest.mark.parametrize("head_dim", [64, 128])
def test_asynchronous_products_are_waited_for_once_a_tile(head_dim: int) -> None:
    """ptxas makes each wait for the one before where it cannot follow the registers: once it did,
    at three stages in both walks."""
    whole, diagonal = walks(head_dim, 90)
    assert count(whole, r"WARPGROUP\.DEPBAR") == 1
    assert count(diagonal, r"WARPGROUP\.DEPBAR") <= 2


def test_it_fits_the_cards_that_people_have() -> None:
    """L4 and RTX 40 (sm_89; A10 and RTX 30 take the same tiles), RTX 50 (sm_120): they give a
    program 99 KB, of which some is left for the driver and for what a later compiler may need."""
    for capability in (89, 120):
        made = case_of(128).compile(capability, pdl=False)
        assert made.shared_bytes <= 90 * 1024
        assert made.spilled_bytes == 0


@given(
    lens=st.lists(st.integers(0, 300), min_size=1, max_size=20),
    group=st.integers(1, 8),
    padding=st.integers(0, 64),
)
def test_the_grid_of_a_shape_has_room_for_every_way_to_share_out_its_tokens(
    lens: list[int], group: int, padding: int
) -> None:
    needed = sum(-(-n * group // 128) for n in lens)
    assert needed <= num_tiles(sum(lens) + padding, len(lens), group, 128)
