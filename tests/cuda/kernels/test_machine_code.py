"""The counts of `tests/support/machine_code.py`, on machine code short enough to count by hand."""

from __future__ import annotations

import pytest

from tests.support.machine_code import after_wait, bytes_above_wait, loops, trips

ABOVE = ["PREEXIT", "LDG.E.EF.128 R8, desc[UR4][R24.64]", "LDG.E.U16 R30, desc[UR4][R2.64]"]
LATER = "LDG.E R1, desc[UR4][R2.64]"
COPY = "LDGSTS.E.BYPASS.128 [R9], desc[UR4][R2.64]"
STORE = "@P0 STG.E.U16 desc[UR6][R4.64], R3"


def below(*lines: str) -> list[str]:
    return [*ABOVE, "ACQBULK", *lines, STORE, "EXIT"]


def test_what_comes_after_the_wait_ends_with_the_last_write() -> None:
    kernel = below("BAR.SYNC.DEFER_BLOCKING 0x0")
    assert len(after_wait(kernel)) == 2
    assert bytes_above_wait(kernel) == 16 + 2


def test_without_a_wait_there_is_nothing_to_count() -> None:
    with pytest.raises(ValueError, match="expected one: compile for sm_90 with PDL=True"):
        after_wait(["LDG.E R4, desc[UR4][R2.64]", STORE])


@pytest.mark.parametrize(
    ("lines", "rounds"),
    [
        (["FADD R1, R8, R9"], 0),  # weights, loaded above the wait
        (["LDG.E R4, desc[UR4][R2.64]", "LDG.E R5, desc[UR4][R2.64+0x10]", "FADD R6, R4, R5"], 1),
        # an address that the load before it gave
        (["LDG.E.64 R4, desc[UR4][R2.64]", "LDG.E R6, desc[UR4][R4.64]"], 2),
        # one of the first two is used before the third leaves
        (
            ["LDG.E R4, desc[UR4][R2.64]", "LDG.E R5, desc[UR4][R2.64+0x10]", "FADD R6, R4, RZ",
             "LDG.E R7, desc[UR4][R2.64+0x20]", "FADD R6, R6, R5"],
            2,
        ),
        # the last of the four registers of a wide load, then one of none
        (["@!P0 LDG.E.128 R4, desc[UR4][R2.64]", "FADD R9, R7, RZ", LATER], 2),
        (["@!P0 LDG.E.128 R4, desc[UR4][R2.64]", "FADD R9, R8, RZ", LATER], 1),
        # wide uses: R4 stands for R4 to R7
        (["LDG.E R6, desc[UR4][R2.64]", "HMMA.16816.F32.BF16 R20, R4, R16, R20", LATER], 2),
        # copies into shared memory are waited for by name
        ([COPY, "LDGDEPBAR", "DEPBAR.LE SB0, 0x0",
          COPY], 2),
        ([COPY, "LDGDEPBAR",
          COPY], 1),
    ],
)  # fmt: skip
def test_a_round_ends_where_a_load_of_it_is_used_and_the_next_load_begins_another(
    lines: list[str], rounds: int
) -> None:
    assert trips(below(*lines)) == rounds


def test_a_loop_goes_from_where_a_branch_goes_back_to_up_to_it() -> None:
    """Branches that go on are none, nor is the one to itself at the end of every kernel."""
    sass = ["@P0 BRA 0x40", "FADD R1, R1, R2", "LDG.E R4, desc[UR4][R2.64]", "@!P1 BRA 0x10",
            "EXIT", "BRA 0x50"]  # fmt: skip
    assert loops(sass) == [sass[1:4]]
