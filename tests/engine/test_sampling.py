"""engine/sampling.py: what a user may ask for, and how a wrong number is refused."""

from __future__ import annotations

import re

import pytest

from mini_engine.engine.batch import Request
from mini_engine.engine.sampling import SamplingParams


@pytest.mark.parametrize(
    ("field", "value", "advice"),
    [
        ("temperature", -0.1, "give 0 (greedy), or 1e-5 to 100,000"),
        ("temperature", 1e-9, "give 0 (greedy)"),
        ("temperature", float("nan"), "give 0 (greedy)"),
        ("temperature", float("inf"), "give 0 (greedy)"),
        ("top_k", -1, "give 1 or more tokens, or 0 for all"),
        ("top_p", 0.0, "give more than 0 and at most 1"),
        ("top_p", 1.01, "give more than 0 and at most 1"),
        ("top_p", float("nan"), "give more than 0 and at most 1"),
        ("min_p", -0.1, "give 0 (all) to 1"),
        ("min_p", 1.5, "give 0 (all) to 1"),
        ("seed", -1, "give 0 to 4,294,967,295"),
        ("seed", 2**32, "give 0 to 4,294,967,295"),
    ],
)
def test_a_number_that_means_nothing_is_refused_by_name(
    field: str, value: float, advice: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{field} is {value}: {advice}")):
        SamplingParams(**{field: value})  # type: ignore[arg-type]


def test_the_ends_of_what_is_allowed_are_allowed_and_a_request_is_greedy_by_itself() -> None:
    SamplingParams(temperature=1e-5, top_k=10**12, top_p=1e-9, min_p=1.0, seed=2**32 - 1)
    SamplingParams(temperature=1e5, top_p=1.0)
    assert Request("a", [1], 1).sampling == SamplingParams(temperature=0.0)
