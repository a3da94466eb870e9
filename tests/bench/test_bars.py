"""bench/bars.py: what a file says of each bar, and what it may not say. Rows are made up."""

from __future__ import annotations

from typing import Any

import pytest

from mini_engine.bench.bar_judges import SHAPES
from mini_engine.bench.bar_points import BASELINES, bench_line
from mini_engine.bench.bars import BARS, BATCHES, BENCH, CALIBRATE, Result, judged
from mini_engine.cli import build_parser
from tests.support.bench_rows import made_up, made_up_row
from tests.support.documents import ROOT, fences

Row = dict[str, Any]  # of a file


def results(rows: list[Row], **given: Any) -> dict[str, Result]:
    measurement = made_up(rows, **{"emulated": False, **given})
    return {result.bar.name: result for result in judged(measurement)}


def row(
    variant: str, us: float, batch: int = 1, shape: str = "qwen3-1.7b", context: int = 512
) -> Row:
    return made_up_row(variant, batch, context, shape, us=us)


def failed(one: Row) -> Row:
    """A baseline that failed the gate: its time is in the file all the same."""
    return {**one, "gate": {**one["gate"], "passed": False}}


@pytest.mark.parametrize(
    ("us", "status", "stretch"),
    [(870.0, "reached", True), (950.0, "reached", False), (1050.0, "missed", False)],
)
def test_an_itl_is_held_against_bar_and_stretch(us: float, status: str, stretch: bool) -> None:
    found = results([row("graph-5", us), row("graph-9", us + 300)])["itl-qwen3-1.7b"]
    assert found.status == status
    assert found.value == pytest.approx(us, rel=0.02)  # made-up rows have noise of 0.4%
    assert found.why.startswith("graph-5 at context 512: ")
    assert ("so is the stretch of 890 µs" in found.why) is stretch


def test_an_interval_across_the_bar_is_a_miss() -> None:
    across = row("graph-5", 1000.0)
    across["itl_us"] |= {"median": 999.0, "low": 990.0, "high": 1001.0}
    assert results([across])["itl-qwen3-1.7b"].status == "missed"
    across["itl_us"] |= {"high": 1000.0}
    assert results([across])["itl-qwen3-1.7b"].status == "reached"


def test_the_largest_context_up_to_512_counts_and_batch_1() -> None:
    rows = [row("graph-5", 1200.0), row("graph-5", 900.0, context=128),
            row("graph-5", 900.0, context=2048), row("graph-5", 900.0, batch=2)]  # fmt: skip
    assert results(rows)["itl-qwen3-1.7b"].status == "missed"
    assert results(rows[2:])["itl-qwen3-1.7b"].status == "not measured"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"emulated": True}, "the CPU emulator wrote this file"),
        ({"gpu": "NVIDIA A100-SXM4-80GB"}, "the bars are for an H200, this is NVIDIA A100"),
    ],
)
def test_another_machine_measures_no_bar(given: dict[str, Any], why: str) -> None:
    found = results([row("graph-5", 100.0)], **given)
    assert {result.status for result in found.values()} == {"not measured"}
    assert all(result.why.startswith(why) and result.value is None for result in found.values())


def test_a_variant_of_somebody_else_or_past_no_gate_reaches_nothing() -> None:
    rows = [row(variant, 500.0) for variant in ("hf-compile", "compile-reduce-overhead", "null")]
    rows.append({**row("graph-5", 500.0), "status": "gate failed"})
    rows.append(failed(row("graph-9", 500.0)))
    assert results(rows)["itl-qwen3-1.7b"].status == "not measured"


@pytest.mark.parametrize(("theirs", "status"), [(8300.0, "reached"), (7900.0, "missed")])
def test_times_transformers_is_of_the_shape_with_the_smallest_factor(
    theirs: float, status: str
) -> None:
    rows = [row("graph-5", 1000.0), row("hf-eager", 20_000.0)]
    rows += [row("graph-5", 1000.0, shape="qwen3-0.6b"), row("hf-eager", theirs, shape=SHAPES[0])]
    found = results(rows)["times-transformers"]
    assert found.status == ("partly measured" if status == "reached" else "missed")
    assert "qwen3-0.6b, graph-5: " in found.why
    assert "the least of 2 shapes" in found.why
    rows += [row("graph-5-pdl", 1000.0, shape=shape) for shape in SHAPES[:3]]
    rows.append(row("hf-eager", 20_000.0, shape="llama-3.2-1b"))
    assert results(rows)["times-transformers"].status == status


def test_a_ratio_is_judged_by_the_ends_that_speak_against_us() -> None:
    ours, theirs = row("graph-5", 1000.0), row("hf-eager", 8000.0)
    ours["itl_us"] |= {"median": 990.0, "high": 1001.0}
    theirs["itl_us"] |= {"median": 8100.0, "low": 8000.0}
    assert results([ours, theirs])["times-transformers"].status == "missed"
    ours["itl_us"] |= {"high": 1000.0}
    assert results([ours, theirs])["times-transformers"].status == "partly measured"


def test_a_baseline_that_failed_the_gate_is_no_baseline() -> None:
    rows = [row("graph-5", 1000.0), failed(row("compile-reduce-overhead", 9000.0))]
    assert results(rows)["times-compile"].status == "not measured"


OURS_AND_BASELINES = ("graph-5-pdl", "ours-graph", "hf-eager", "compile-reduce-overhead")


def everywhere(slow_at: int = 0, shape: str = SHAPES[0]) -> list[Row]:
    """A shape at every batch: baselines of 1,000 µs, ours 10% faster, or slower at one batch."""
    return [
        row(
            arm, 1000.0 if arm in BASELINES else 1100.0 if batch == slow_at else 900.0, batch, shape
        )
        for batch in BATCHES
        for arm in OURS_AND_BASELINES
    ]


def test_never_slower_takes_every_point_and_falls_at_one() -> None:
    found = results(everywhere())["never-slower"]
    assert found.status == "reached"
    assert found.why.startswith("at qwen3-0.6b 1, qwen3-0.6b 8, qwen3-0.6b 64, qwen3-0.6b 256; ")
    slow = results(everywhere(slow_at=64))["never-slower"]
    assert slow.status == "missed"
    assert slow.why.startswith("qwen3-0.6b, batch 64: ")
    assert slow.value == pytest.approx(1.1, rel=0.03)


def test_a_point_that_the_bar_does_not_ask_for_is_enough_to_miss_it() -> None:
    more = [row("graph-9", 1100.0, 16), row("hf-compile", 1000.0, 16)]
    assert results(everywhere() + more)["never-slower"].why.startswith("qwen3-1.7b, batch 16: ")
    other = everywhere(slow_at=8, shape="qwen2.5-1.5b")
    assert results(everywhere() + other)["never-slower"].status == "missed"


def test_what_is_missing_of_a_bar_is_named_with_the_command_that_measures_it() -> None:
    some = results(everywhere()[:6])["never-slower"]  # batch 1, and ours at batch 8
    assert some.status == "partly measured"
    assert some.why.startswith("holds so far: at qwen3-0.6b 1; closest: ")
    lacks = (
        "; missing: qwen3-0.6b, batch 8: hf-eager, compile-reduce-overhead; qwen3-0.6b, batch "
        f"64 256: {', '.join(OURS_AND_BASELINES)} (run: {BENCH} --shape qwen3-0.6b "
        f"--batch 8,64,256 --context 512 --arms {','.join(OURS_AND_BASELINES)} --processes 1)"
    )
    assert some.why.endswith(lacks)
    assert some.as_dict()["missing"][0] == {
        "shape": "qwen3-0.6b", "batch": 8, "arm": "hf-eager", "failed_gate": False
    }  # fmt: skip
    missed = results(everywhere(slow_at=1)[:6])["never-slower"]
    assert missed.status == "missed"
    assert missed.why.endswith(lacks)  # more of it would not save it, but the file may want it


def test_the_command_continues_the_file_that_is_judged() -> None:
    line = bench_line("course/measurements/bench-h200.json", "out/gpu/card.json", "out/h.json")
    found = {one.bar.name: one for one in judged(made_up(everywhere()[:6], emulated=False), line)}
    assert line.endswith(
        "--spec out/gpu/card.json --host out/h.json -o course/measurements/bench-h200.json"
    )
    assert f"(run: {line} --shape qwen3-0.6b --batch 8,64,256 " in found["never-slower"].why
    assert found["times-compile"].as_dict()["command"].startswith(line)


def test_level_intervals_are_no_miss_and_nothing_to_compare_is_no_verdict() -> None:
    level = [row("graph-5", 1000.0), row("hf-compile", 999.0)]
    level[0]["itl_us"] |= {"low": 995.0}
    level[1]["itl_us"] |= {"high": 1003.0}  # the intervals overlap: nobody is slower
    assert results(level)["never-slower"].status == "partly measured"
    assert results(level[:1])["never-slower"].status == "not measured"


def test_a_baseline_that_fails_the_gate_counts_as_run_where_another_one_stands_in() -> None:
    rows = everywhere()
    rows[3] = failed(rows[3])  # compile-reduce-overhead at batch 1; hf-eager is there
    assert results(rows)["never-slower"].status == "reached"
    rows[2] = failed(rows[2])
    alone = results(rows)["never-slower"]
    assert alone.status == "partly measured"
    assert "batch 1: hf-eager (failed the gate), compile-reduce-overhead (fai" in alone.why


def test_an_arm_that_is_not_there_does_not_hold_up_an_itl_that_another_one_reaches() -> None:
    found = results([row("graph-9", 900.0)])["itl-qwen3-1.7b"]
    assert (found.status, "missing" in found.why) == ("reached", False)
    slow = results([row("graph-9", 1100.0)])["itl-qwen3-1.7b"]
    assert slow.status == "missed"
    assert "; missing: qwen3-1.7b, batch 1: graph-5-pdl, graph-5-pdl-k8, graph-5 (run" in slow.why


def predicted(rows: list[Row], factor: float) -> list[Row]:
    return [{**one, "predicted_us": one["itl_us"]["median"] * factor} for one in rows]


CALIBRATED_HERE = {"spec": "h200-calibrated", "host": "h200-host-calibrated"}


def test_the_simulator_is_judged_by_its_worst_point_and_only_with_a_fitted_spec() -> None:
    rows = predicted([row("ours-graph", 1000.0), row("hf-eager", 9000.0)], 1.05)
    assert results(rows)["prediction"].status == "not measured"
    assert "predicted with h200 and server, not measured on this" in results(rows)["prediction"].why
    half = results(rows, spec="h200-calibrated")["prediction"]
    assert half.why.startswith("predicted with server, not measured on this machine")
    fitted = results(rows, **CALIBRATED_HERE)["prediction"]
    assert fitted.status == "partly measured"
    assert fitted.why.startswith("holds so far: 2 of 2 points within 10%; worst ")
    rows += predicted([row("graph-5-pdl", 800.0)], 0.8)
    worst = results(rows, **CALIBRATED_HERE)["prediction"]
    assert worst.status == "missed"
    assert "worst graph-5-pdl, qwen3-1.7b, batch 1, context 512: 20.0% off" in worst.why


def test_a_prediction_is_of_every_arm_but_the_anchors_double() -> None:
    arms = next(bar for bar in BARS if bar.name == "prediction").points.arms
    asked = [row(arm, 900.0, batch, SHAPES[0]) for batch in BATCHES for arm in arms]
    rows = predicted(asked, 0.95)
    assert results(rows, **CALIBRATED_HERE)["prediction"].status == "reached"
    unjudged = predicted([row("null", 800.0)], 0.5)
    assert results(rows + unjudged, **CALIBRATED_HERE)["prediction"].status == "reached"
    compiled = predicted([row("compile-max-autotune", 800.0)], 0.5)
    assert results(rows + compiled, **CALIBRATED_HERE)["prediction"].status == "missed"


def packed(of: dict[str, Any], quant: str, us: float, fewer: float) -> dict[str, Any]:
    """The row of the same arm on quantised weights."""
    arm = row(of["variant"], us, of["batch"], of["shape"])
    moved = {"variant": f"{of['variant']}-{quant}", "bytes_to_move": of["bytes_to_move"] / fewer}
    return arm | moved


def test_fewer_bytes_are_judged_by_what_they_allow_and_stand_in_for_nothing_else() -> None:
    """Half of the bytes allow twice the speed; 1.5 times is half of what they allow."""
    both = [row("graph-5-pdl", 900.0, 1, shape) for shape in ("qwen3-1.7b", "qwen3-8b")]
    fast = [packed(one, "int8", 590.0, 2.0) for one in both]
    found = results(both + fast)
    assert found["fewer-bytes-int8"].status == "reached"
    assert found["fewer-bytes-int8"].value == pytest.approx(900 / 590 - 1)
    assert found["fewer-bytes-int4"].status == "not measured"
    assert found["itl-qwen3-1.7b"].why.startswith("graph-5-pdl at context 512")
    assert results(fast)["itl-qwen3-1.7b"].status == "not measured"
    slow = packed(both[1], "int8", 610.0, 2.0)
    assert results([*both, fast[0], slow])["fewer-bytes-int8"].status == "missed"
    assert results([both[0], fast[0]])["fewer-bytes-int8"].status == "partly measured"


def test_every_bar_names_its_source_and_a_command_and_can_be_written() -> None:
    found = results([row("graph-5", 900.0)])
    assert list(found) == [bar.name for bar in BARS]
    assert len(found) == 9
    for bar in BARS:
        assert bar.source
        assert bar.command.startswith(f"{BENCH} --shape ")
        assert found[bar.name].as_dict()["command"].startswith(f"{BENCH} --shape ")
    written = found["itl-qwen3-1.7b"].as_dict()
    assert written["status"] == "reached"
    assert written["source"].startswith("3.44 GB at 80%")


def test_the_course_lists_every_bar_with_its_command() -> None:
    """Fails when a bar says something else now: change the list. What stands in the last column is
    the business of `gpu publish` and its tests."""
    text = (ROOT / "course/measurements/README.md").read_text()
    commands = [" ".join(command.split()) for fence in fences(text) if fence.info == "sh gpu"
                for command in fence.commands]  # fmt: skip
    assert f".venv/bin/{CALIBRATE}" in commands
    for bar in BARS:
        assert f"| {bar.says} | {bar.source} | " in text, bar.name
        assert f".venv/bin/{bar.command}" in commands, bar.name


@pytest.mark.parametrize("command", [CALIBRATE, *(bar.command for bar in BARS)])
def test_every_command_is_one_that_the_command_line_takes(command: str) -> None:
    words = command.split()[3:]
    args = build_parser(words).parse_args(words)
    if words[0] == "bench":
        assert args.resume
        assert args.minutes == 7.5
        assert len(args.arms) > 1
        assert args.out.as_posix() == "course/measurements/bars-h200.json"
