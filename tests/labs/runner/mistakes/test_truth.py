"""A check names a misconception where it is one, and nothing where it is not.

tests/labs/test_every_lab.py asks for every wrong answer whether it is told from all others.
"""

from __future__ import annotations

import pytest

from labs.runner.checks.checking import Report, check_texts
from labs.runner.checks.warm import context
from labs.runner.cut.catalogue import lab_number
from labs.runner.mistakes.diagnosis import diagnose, is_slip


def checked(number: str, *changes: tuple[str, str], wrong: str = "") -> Report:
    """The report of a lab on the engine's own text with a wrong answer and with some changes."""
    lab = lab_number(number)
    texts = lab.texts(f"wrong/{wrong}") if wrong else lab.reference()
    for old, new in changes:
        (file,) = (name for name, text in texts.items() if old in text)
        texts[file] = texts[file].replace(old, new, 1)
    report = check_texts(lab, texts, context=context())
    report.causes = diagnose(lab, texts, report, context=context(), time_s=60)
    return report


def named(report: Report) -> set[str]:
    """The misconceptions that are named for any of the tests."""
    return {id for ids in report.causes.values() for id in ids}


MISTAKES = [  # lab, what stands there, what somebody typed
    ("4", "spec.cpu_op_us, spec.stream_gap_us", "spec.cpu_op_us, spec.graph_gap_us"),
    ("4", "kernels * issue + kernel_us  #", "kernels * issue + 2 * kernel_us  #"),
    ("4", "return kernels * kernel_us / itl_us", "return kernels + kernel_us / itl_us"),
    ("4", "return kernels * kernel_us / itl_us", "return kernels * kernel_us / itl"),
    ("4", "math.ceil(capture_us / saved_us)", "math.floor(capture_us / saved_us)"),
    ("4", "kernel_floor_us - spec.stream_gap_us)", "kernel_floor_us + spec.stream_gap_us)"),
    ("4", "spec.cpu_op_us, spec.stream_gap_us", "spec.cpu_op_us, spec.streams_gap_us"),
    ("4", "_first_start_us(launch, spec) + graph_us", "_first_start_us(spec, launch) + graph_us"),
    ("4", "max(cpu_late, gpu_late)", "max(cpu_late)"),
    ("12", "F32(q.shape[-1] ** -0.5)", "F32(q.shape[-1] ** 0.5)"),
    ("12", "F32(q.shape[-1] ** -0.5)", "F32(q.shape[0] ** -0.5)"),
    ("12", "m = np.maximum(part.m, scores", "m = np.minimum(part.m, scores"),
    ("12", "keys.transpose(1, 2, 0))", "keys.transpose(2, 1, 0))"),
    ("12", "min(start + tile, n)", "min(start + tile, n - 1)"),
    ("12", "= part.acc / part.l", "= part.acc * part.l"),
    ("12", "return finished(walk(", "return finish(walk("),
    ("8", "at = bisect_left(self, n)", "at = bisect_left(self, 2 * n)"),
    ("8", "padded += (rung - rows) * steps", "padded += (rung + rows) * steps"),
    ("8", "eager_steps += steps", "eager_steps += 1"),
    ("8", "            return 0\n        at =", "            return 1\n        at ="),
]


@pytest.mark.parametrize(
    ("number", "before", "after"),
    [
        pytest.param(*mistake, marks=[] if place == 2 else [pytest.mark.slow])
        for place, mistake in enumerate(MISTAKES)
    ],
)
def test_a_slip_or_a_mistake_of_another_kind_is_given_no_misconception(
    number: str, before: str, after: str
) -> None:
    report = checked(number, (before, after))
    assert report.failed
    assert named(report) == set()
    looked_into = {o.test for o in report.failed if not is_slip(o)}
    assert set(report.causes) == looked_into


def test_a_misconception_in_other_words_is_named() -> None:
    usual = "end = _first_start_us(launch, spec) + graph_us(kernels, kernel_us, spec)"
    own = "end = _first_start_us(launch, spec) + sum([kernel_us] * kernels)"
    assert named(checked("4", (usual, own))) == {"graph-is-free"}


@pytest.mark.slow
def test_a_mistake_that_does_more_than_a_known_one_is_named_for_what_that_does() -> None:
    next_one = "next((r for r in sorted(self.graphs) if r >= num_rows), None)"
    report = checked("5", (next_one, "max(self.graphs, default=None)"))
    assert named(report) == {"largest-rung"}
    refused = "test_a_batch_that_fits_no_captured_rung_is_refused_and_told_both_numbers"
    assert report.causes[refused] == (), "and this one needs another mend"


def test_a_list_in_the_place_of_an_array_hides_no_misconception() -> None:
    report = checked("7", ("np.cumsum(query_lens) - 1", "[n - 1 for n in query_lens]"))
    assert named(report) == {"last-row-of-its-own"}


def test_of_three_slips_in_three_holes_each_is_named() -> None:
    report = checked(
        "8",
        ("at = bisect_left(self, n)", "at = bisect_left(self, n + 1)"),
        ("padded += (rung - rows) * steps", "padded += rung - rows"),
        ("computed = self.real_rows + self.padded_rows", "computed = self.real_rows"),
    )
    assert named(report) == {"a-rung-is-above", "a-size-is-one-step", "waste-of-the-real"}


def test_a_search_that_ran_out_of_time_says_so_and_names_nothing() -> None:
    lab = lab_number("4")
    texts = lab.wrong("graph-is-free")
    report = check_texts(lab, texts, context=context())
    assert 0 < report.cpu_s <= report.seconds
    assert not any(diagnose(lab, texts, report, context=context(), time_s=1e-6).values())
    assert report.unsought


def test_each_of_two_mistakes_is_judged_by_itself() -> None:
    slip = ("return kernels * kernel_us / itl_us", "return kernels * kernel_us - itl_us")
    report = checked("4", slip, wrong="graph_is_free")
    causes = {o.test: report.causes[o.test] for o in report.failed}
    assert causes.pop("test_utilisation_counts_kernels_and_nothing_else") == ()
    assert causes.pop("test_utilisation_is_not_rounded_however_small_it_is") == ()
    assert set(causes.values()) == {("graph-is-free",)}
    assert not report.unsought, "there was time enough"


@pytest.mark.slow
def test_a_misconception_is_not_blamed_for_a_test_that_fails_before_its_hole_is_reached() -> None:
    """The failing test can catch it, and it would make the test fail too: that shows nothing."""
    stop = 'raise ValueError("stop")\n    issue, gap'
    report = checked("4", ("issue, gap", stop))
    assert report.failed
    assert named(report) == set()


def test_what_is_refused_is_shown_with_the_call_and_its_input() -> None:
    report = checked("3", ("if kv_dtype not in KV_DTYPE_BYTES:", "if kv_dtype == 0:"))
    (failed,) = report.failed
    assert failed.error == "KeyError"
    assert failed.asserted.startswith("with pytest.raises(ValueError"), "another error is awaited"
    report = checked("8", ("if n < 0:", "if n < -1:"))
    (failed,) = report.failed
    assert failed.error == "Failed"
    assert failed.asserted.endswith("ladder.rung(rows)")
    assert "rows=-1" in failed.inputs
