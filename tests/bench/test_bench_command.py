"""The benchmark from a row to the command: what is written when, what is kept, what is told."""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._C._autograd import DeviceType  # noqa: E402

from mini_engine.bench import bench, gate, table  # noqa: E402
from mini_engine.bench import variants as variants_room  # noqa: E402
from mini_engine.bench.bars import BARS  # noqa: E402
from mini_engine.bench.decode_setup import DecodeSetup, Variant, build_setup  # noqa: E402
from mini_engine.bench.evidence import (  # noqa: E402
    load_evidence,
    read_measurement,
    without_paths,
    write_measurement,
)
from mini_engine.bench.our_variants import OursEager  # noqa: E402
from mini_engine.bench.variants import VARIANTS, VariantKind  # noqa: E402
from mini_engine.cli import bench as bench_command  # noqa: E402
from mini_engine.cli import bench_file, main  # noqa: E402
from mini_engine.cli.bench_file import config_of  # noqa: E402
from mini_engine.cli.measuring import specs_for  # noqa: E402
from mini_engine.cuda.graphs import emulator  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.weights import random_weights  # noqa: E402
from mini_engine.model.config import named_shape  # noqa: E402
from mini_engine.records.measured import measured_steps  # noqa: E402
from mini_engine.records.other_rows import OtherRow  # noqa: E402
from mini_engine.records.rows import GATE_FAILED, NOT_RUN, Point, Row  # noqa: E402
from mini_engine.step.capacity import kv_bytes_per_token, read_bytes  # noqa: E402
from mini_engine.step.figures import names  # noqa: E402
from mini_engine.step.hardware import load_spec  # noqa: E402
from mini_engine.step.oplists import StepShape, step_ops  # noqa: E402
from mini_engine.step.step_cost import kernel_us  # noqa: E402
from tests.support.bench_rows import made_up, made_up_row  # noqa: E402
from tests.support.gate_helpers import Spoiled  # noqa: E402
from tests.support.torch_helpers import CPU  # noqa: E402
from tests.support.warm_python import warm_python  # noqa: E402

ROOT = Path(__file__).parent.parent.parent
H200 = load_spec("h200", engine="launch-bound")
QUICK = bench.Effort(rounds=2, steps=2)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No gradients, and a gate of few steps: `test_gate.py` is about the gate."""
    monkeypatch.setattr(gate, "STEPS", (4, 16))
    with torch.no_grad():
        yield


# ---------------------------------------------------------------- rows


def rows_of(names: list[str], effort: bench.Effort = QUICK, **point: Any) -> list[Row]:
    config = config_of("tiny")
    weights = random_weights(config, CPU, torch.bfloat16, seed=0)
    where = Point("tiny", **{"batch": 1, "context": 40, **point})
    backend = graphs_for("cpu")
    return list(bench.bench_point(backend, weights, where, names, effort, lambda _: H200, 4300.0))


def test_a_row_holds_what_a_reader_needs_to_doubt_it() -> None:
    (row,) = rows_of(["ours-graph-k8"])
    assert row.status == "measured"
    assert row.steps_a_call == 8
    config = config_of("tiny")
    assert row.bytes_to_move == read_bytes(config) + 40 * kv_bytes_per_token(config)
    gb_s = row.bytes_to_move / row.itl_us / 1e3
    assert row.achieved_gb_s == pytest.approx(gb_s, abs=1e-3)
    assert row.percent_of_copy == pytest.approx(100 * gb_s / 4300, abs=1e-3)
    assert row.itl.samples == 2
    assert row.is_result
    assert row.kernels_a_call is None  # no profiler sees kernels on a CPU


def test_a_graph_that_was_left_out_is_in_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(setup: DecodeSetup) -> Variant:
        variant = OursEager(setup)

        def prepare() -> None:
            log = logging.getLogger("torch._inductor.cudagraph_utils.__cudagraphs")
            log.warning("skipping cudagraphs due to mutated inputs (2 instances)")

        variant.prepare = prepare  # type: ignore[method-assign]
        return variant

    monkeypatch.setitem(variants_room.VARIANTS, "silent", VariantKind(make, "full"))
    monkeypatch.setattr(bench, "count_launches", lambda *_: (300, 259))
    (row,) = rows_of(["silent"])
    assert row.no_graph == "259 launches; mutated inputs (2 instances)"


def test_a_row_is_read_as_it_was_written() -> None:
    (measured,) = rows_of(["ours-eager"])
    absent = Row("tiny", 1, 40, "x", NOT_RUN, "no room")
    wrong = replace(absent, status=GATE_FAILED, gate={"passed": False})
    for row in (measured, replace(measured, failed_in_another_process="why"), absent, wrong):
        assert Row.from_json(json.loads(json.dumps(row.as_json()))) == row
    assert "reason" not in measured.as_json()
    assert list(absent.as_json()) == ["shape", "batch", "context", "variant", "status", "reason"]
    with pytest.raises(KeyError, match="itl_us"):
        Row.from_json({k: v for k, v in measured.as_json().items() if k != "itl_us"})


def test_the_prediction_leaves_out_what_no_lap_contains() -> None:
    ops = step_ops(named_shape("qwen3-0.6b"), StepShape.decode(1, 512), "fused9")
    full = bench.predicted_us(ops, 1, H200, "full")
    busy = sum(kernel_us(op, H200) for op in ops)
    gaps = len(ops) * H200.graph_gap_us
    # one launch, 2.8 µs, may stand before the first kernel; a copy would be 6 µs and more
    assert full == pytest.approx(busy + gaps, abs=4)
    assert bench.predicted_us(ops * 8, 8, H200, "full") == pytest.approx(full, rel=0.01)
    eager = bench.predicted_us(ops, 1, H200, "eager")
    head_us = kernel_us(ops[-2], H200)  # the CPU is ahead after this one
    assert eager == pytest.approx(len(ops) * H200.cpu_op_us + head_us, rel=0.01)


def test_what_runs_with_pdl_is_predicted_with_it_and_nothing_else_is() -> None:
    assert {name for name, kind in VARIANTS.items() if kind.pdl} == {
        name for name in VARIANTS if name.startswith("graph-5-pdl")
    }
    ops = step_ops(named_shape("qwen3-0.6b"), StepShape.decode(1, 512), "fused5")
    found = [
        bench._predicted(VARIANTS[name], SimpleNamespace(), ops, 1, H200)  # type: ignore[arg-type]
        for name in ("graph-5", "graph-5-pdl")
    ]
    assert found[0] - found[1] == pytest.approx((len(ops) - 1) * H200.pdl_saves_us)


def test_each_variant_is_predicted_as_the_engine_that_it_stands_for() -> None:
    assert VARIANTS["hf-eager"].engine == "transformers"
    assert VARIANTS["ours-graph"].engine == "pytorch-loop"
    assert VARIANTS["graph-5-pdl-k8"].engine == "launch-bound"
    assert {kind.engine for kind in VARIANTS.values()} <= set(names("engine"))
    on_h200 = specs_for("h200", "desktop-2025")
    assert (on_h200("transformers").host, on_h200("transformers").ops) == ("desktop-2025", "hf56")
    assert specs_for("laptop-cpu", None)("transformers").engine == "numpy"  # the emulator's own


def test_what_a_compiler_makes_of_the_ops_is_predicted_by_its_own_list() -> None:
    config = config_of("tiny")
    weights = random_weights(config, CPU, torch.bfloat16, seed=0)
    setup = build_setup(graphs_for("cpu"), weights, 1, 40, 64)
    compiled = load_spec("h200", engine="torch-compile")
    kind, theirs = VARIANTS["compile-reduce-overhead"], OursEager(setup).ops()
    own = step_ops(config, StepShape.decode(1, 40), compiled.ops)
    found = bench._predicted(kind, setup, theirs, 1, compiled)
    assert found == bench.predicted_us(own, 1, compiled, "full")
    assert found < bench.predicted_us(theirs, 1, compiled, "full")


def test_a_variant_that_breaks_does_not_take_the_others_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaks(_: DecodeSetup) -> Variant:
        raise RuntimeError("it broke\nin many lines")

    def no_room(_: DecodeSetup) -> Variant:
        raise torch.OutOfMemoryError("Tried to allocate")

    def add(name: str, make: Callable[[DecodeSetup], Variant], gated: bool) -> None:
        kind = VariantKind(make, "full", gated=gated)
        monkeypatch.setitem(variants_room.VARIANTS, name, kind)

    add("broken", breaks, True)
    add("large", no_room, True)
    add("wrong", lambda s: Spoiled(OursEager(s), lambda x: x * 1.1), True)  # type: ignore[arg-type]
    add("wrong-baseline", lambda s: Spoiled(OursEager(s), lambda x: x * 1.1), False)  # type: ignore[arg-type]
    names = ["broken", "large", "wrong", "wrong-baseline", "ours-eager"]
    rows = {row.variant: row for row in rows_of(names)}
    assert rows["broken"].reason == "RuntimeError: it broke"
    assert rows["large"].reason == "out of memory: Tried to allocate"
    assert rows["wrong"].status == "gate failed"
    assert rows["wrong"].reason.startswith("gate: ")
    assert "itl_us" not in rows["wrong"].as_json()  # a wrong variant has no time
    assert rows["wrong-baseline"].status == "measured"
    assert rows["wrong-baseline"].failed_gate
    assert rows["ours-eager"].status == "measured"
    in_file = [row.as_json() for row in rows.values()]
    told = table.markdown(made_up(in_file))
    assert "| wrong | **gate failed**: gate: " in told
    (baseline,) = [line for line in told.splitlines() if line.startswith("| wrong-baseline ")]
    assert "| **failed**: gate: " in baseline
    assert {step.variant for step in measured_steps(in_file)} == {"ours-eager"}


def test_a_point_that_cannot_be_set_up_is_told_variant_by_variant() -> None:
    rows = rows_of(["ours-eager", "ours-graph"], context=5000)
    assert [row.status for row in rows] == ["not run"] * 2
    assert "tiny reaches 512" in rows[0].reason


def test_when_the_time_is_over_no_variant_is_started() -> None:
    rows = rows_of(["ours-eager"], bench.Effort(2, 2, deadline=0.0))
    assert rows[0].reason.endswith("go on with --resume")


def test_kernels_and_launches_are_counted_and_copies_are_no_kernels() -> None:
    def event(name: str, on_gpu: bool, user: bool = False) -> Any:
        kind = DeviceType.CUDA if on_gpu else DeviceType.CPU
        return SimpleNamespace(name=name, device_type=kind, is_user_annotation=user)

    events = [
        event("cudaGraphLaunch", False), event("cudaLaunchKernelExC", False),
        event("cudaMemcpyAsync", False), event("aten::mm", False),
        event("cudaStreamSynchronize", False), event("gemv_kernel", True),
        event("gemv_kernel", True), event("Memcpy HtoD (Pinned -> Device)", True),
        event("ProfilerStep", True, user=True),
    ]  # fmt: skip
    assert bench.counted(events) == (2, 3)
    assert bench.counted([]) == (None, None)


# ---------------------------------------------------------------- table and command


def test_the_table_shows_every_row_the_bars_and_why_a_variant_did_not_run() -> None:
    rows = [made_up_row("hf-eager", 1), made_up_row("ours-graph", 1, processes=3)]
    rows.append(Row("qwen3-0.6b", 1, 512, "odd|variant", NOT_RUN, "no | GPU").as_json())
    rows.insert(1, Row("qwen3-0.6b", 2, 512, "ours-graph", NOT_RUN, "why").as_json())
    made = made_up(rows)
    text = table.markdown(made)
    assert text.startswith("**Emulated on a CPU")
    tables = [line for line in text.splitlines() if line.startswith("| ")]
    bar_lines, tables = tables[: 2 + len(BARS)], tables[2 + len(BARS) :]
    assert all("| not measured |" in line for line in bar_lines[2:])
    assert len(tables) == 2 + 3 + 2 + 1  # two heads with their rules, the rows of two points
    assert {line.replace("\\|", "").count("|") for line in tables} == {len(table.HEADER) + 1}
    assert "not run: no \\| GPU" in text
    medians = " · ".join(f"{us:,.1f}" for us in rows[2]["process_medians_us"])
    assert f"| {medians} |" in text
    assert "means over 1 to 3 processes of medians of 8 laps" in text
    assert not table.markdown(replace(made, emulated=False)).startswith("**")
    with pytest.raises(ValueError, match="a calibration, expected a bench"):
        table.markdown(replace(made, kind="calibration"))


# ---------------------------------------------------------------- rows of several processes


def row_of(variant: str, processes: int = 1) -> Row:
    return Row.from_json(made_up_row(variant, 1, processes=processes))


def without_time(status: str, reason: str) -> Row:
    gate = {"passed": False} if status == GATE_FAILED else {}
    return Row("qwen3-0.6b", 1, 512, "ours-graph", status, reason, gate)


def test_a_row_of_three_processes_keeps_each_and_covers_all() -> None:
    one, three = (row_of("ours-graph", n) for n in (1, 3))
    assert len(one.runs) == 1
    assert len(three.runs) == 3
    assert len(three.process_medians_us) == 3
    itl = three.itl
    assert itl.median == pytest.approx(sum(three.process_medians_us) / 3, rel=1e-5)  # six
    assert (itl.samples, itl.processes) == (24, 3)
    assert itl.low < min(three.process_medians_us)
    assert itl.high > max(three.process_medians_us)
    gb_s = three.bytes_to_move / itl.median / 1e3
    assert three.achieved_gb_s == pytest.approx(gb_s, rel=1e-5)  # six digits of the median


def test_a_gate_that_failed_in_one_process_has_failed() -> None:
    good, bad = row_of("ours-graph"), without_time(GATE_FAILED, "gate: why")
    for old, new in ((good, bad), (bad, good)):
        row = table.joined(old, new, 4300.0)
        assert row.status == "gate failed"
        assert "itl_us" not in row.as_json()
    assert not table.wants(bad, 1)
    assert not table.wants(bad, 2)


def test_a_baseline_that_failed_the_gate_in_one_process_has_failed() -> None:
    good = row_of("hf-eager")
    bad = replace(good, gate={**good.gate, "passed": False})
    for old, new in ((good, bad), (bad, good)):
        row = table.joined(old, new, 4300.0)
        assert len(row.runs) == 2
        assert row.failed_gate


def test_a_process_that_breaks_leaves_what_others_measured() -> None:
    good, broken = row_of("ours-graph"), without_time(NOT_RUN, "no room")
    row = table.joined(good, broken, 4300.0)
    assert row.itl == good.itl
    assert row.failed_in_another_process == "no room"
    assert table.joined(broken, good, 4300.0) == good


def test_a_process_measures_what_has_fewer_runs_than_its_number() -> None:
    twice = row_of("ours-graph", processes=2)
    assert [table.wants(twice, process) for process in (1, 2, 3)] == [False, False, True]
    assert [table.wants(None, process) for process in (1, 2)] == [True, True]
    missing = without_time(NOT_RUN, "no")
    assert [table.wants(missing, process) for process in (1, 2)] == [True, False]


# ---------------------------------------------------------------- the command

WORDS = ["bench", "--device", "cpu", "--quick", "--batch", "1", "--rounds", "2", "--steps", "2"]


def test_the_command_measures_marks_its_file_and_resumes_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench.json"
    words = [*WORDS, "-o", str(out)]
    assert main([*words, "--arms", "ours-graph,compile-default"]) == 0
    told, progress = capsys.readouterr()
    assert "no evidence about any GPU" in told
    assert "not measured  Qwen3-1.7B: ITL of 1.00 ms or less" in told
    assert (
        "no bench-waterfall.png: 1 of its variants with a result at batch 1, it takes two" in told
    )
    assert progress.startswith("1 of 2: tiny batch 1 context 40: ours-graph ")
    with pytest.raises(ValueError, match="no evidence"):
        load_evidence(out)
    first = {row["variant"]: row for row in read_measurement(out).figures["rows"]}
    assert first["ours-graph"]["status"] == "measured"
    assert first["compile-default"]["reason"].endswith("needs an NVIDIA GPU")
    assert main([*words, "--arms", "null,ours-graph,ours-eager", "--resume", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    figures = read_measurement(out).figures
    rows = {row["variant"]: row for row in figures["rows"]}
    assert list(rows) == ["ours-graph", "compile-default", "null", "ours-eager"]
    assert rows["ours-graph"] == first["ours-graph"]  # kept, not measured again
    assert told["rows"] == list(rows.values())
    assert without_paths(told["bars"]) == figures["bars"]  # a command names the file
    assert {bar["status"] for bar in figures["bars"]} == {"not measured"}
    assert told["pictures"] == [str(tmp_path / "bench-waterfall.png")]
    assert set(told["not_drawn"]) == {"bench-itl.png", "bench-crossover.png"}
    text = out.with_suffix(".md").read_text()
    assert "| ours-eager |" in text
    assert str(tmp_path) not in text + out.read_text()


def test_fresh_processes_measure_the_same_one_after_the_other(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    words = [*WORDS, "--arms", "ours-graph", "--processes", "2", "-o", str(out)]
    done = subprocess.run(
        [warm_python(), "-m", "mini_engine", *words], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert "process 1 of 2, 1 of 1: tiny batch 1 context 40: ours-graph" in done.stderr
    assert "process 2 of 2, 1 of 1: tiny" in done.stderr
    measurement = read_measurement(out)
    (row,) = measurement.figures["rows"]
    assert row["itl_us"]["processes"] == len(row["runs"]) == 2
    assert "--processes 2" in measurement.command
    assert "--process " not in measurement.command


def in_this_process(words: list[str]) -> int:
    """Stands in for a fresh process where what counts is who measures what."""
    assert words[:3] == ["-m", "mini_engine", "bench"]
    return main(words[2:])


def test_an_interrupted_process_ends_the_run_and_a_resumed_one_measures_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def run(words: list[str]) -> int:
        calls.append(words[words.index("--process") + 1])
        return 130 if len(calls) == 2 else in_this_process(words)

    monkeypatch.setattr(bench_file, "run_python", run)
    out = tmp_path / "bench.json"
    words = [*WORDS, "--arms", "ours-eager,null", "--processes", "2", "-o", str(out)]
    assert main(words) == 130
    rows = read_measurement(out).figures["rows"]
    assert [len(row["runs"]) for row in rows] == [1, 1]
    capsys.readouterr()
    assert main([*words, "--resume"]) == 0
    assert calls == ["1", "2", "1", "2"]
    progress = capsys.readouterr().err
    assert "process 1" not in progress  # it had nothing to do
    assert "process 2 of 2, 2 of 2" in progress
    assert [len(row["runs"]) for row in read_measurement(out).figures["rows"]] == [2, 2]


def test_after_its_minutes_a_run_starts_no_arm_and_the_next_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock stands still while an arm runs, and a process takes a minute."""
    now, lines = [0.0], []

    def run(words: list[str]) -> int:
        lines.append(words[words.index("--process") :])
        now[0] += 60
        return in_this_process(words)

    clock = SimpleNamespace(monotonic=lambda: now[0], perf_counter=time.perf_counter)
    for module in (bench_file, bench):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(bench_file, "run_python", run)
    out = tmp_path / "bench.json"
    words = [*WORDS, "--arms", "ours-eager", "--processes", "3", "-o", str(out), "--minutes"]
    assert main([*words, "1.5"]) == 0
    assert lines == [
        ["--process", "1", "--minutes", "1.50"],
        ["--process", "2", "--minutes", "0.50"],
    ]
    measurement = read_measurement(out)
    assert [len(row["runs"]) for row in measurement.figures["rows"]] == [2]
    assert measurement.command.endswith("--minutes 1.5")
    assert main([*words, "2.5", "--resume"]) == 0
    assert [len(row["runs"]) for row in read_measurement(out).figures["rows"]] == [3]


def test_what_a_run_had_no_time_for_leaves_no_mark_on_what_it_had_measured() -> None:
    (row,) = rows_of(["ours-eager"])
    (late,) = rows_of(["ours-eager"], replace(QUICK, deadline=0.0))
    assert (late.status, late.reason) == (NOT_RUN, table.OVER)
    assert table.joined(row, late, 4300.0) == row
    assert table.joined(None, late, 4300.0) == late
    assert table.wants(late, 1)


def test_a_process_that_dies_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_file, "run_python", lambda _: -9)
    out = tmp_path / "bench.json"
    assert main([*WORDS, "--processes", "2", "-o", str(out)]) == 2
    assert "process 1 of 2 ended with code -9: what it measured is in" in capsys.readouterr().err


def test_table_and_pictures_are_made_again_without_torch_and_without_measuring(
    tmp_path: Path,
) -> None:
    out = tmp_path / "bench.json"
    rows = [
        made_up_row(variant, b)
        for variant in ("ours-eager", "ours-graph", "graph-5")
        for b in (1, 8)
    ]
    write_measurement(out, made_up(rows))
    before = out.read_bytes()
    code = (
        "import sys; from mini_engine.cli import main; code = main(sys.argv[1:]); "
        "sys.exit(code or 'torch' in sys.modules)"
    )
    words = ["bench", "--plot", str(out), "-o", str(tmp_path / "again" / "x.json")]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    made = {path.name for path in (tmp_path / "again").iterdir()}
    assert made == {"x.md", "x-itl.png", "x-crossover.png", "x-waterfall.png"}
    assert out.read_bytes() == before


def test_a_picture_of_another_place_is_drawn_when_asked_for_and_only_where_there_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench.json"
    variants = ("ours-eager", "ours-graph")
    rows = [made_up_row(variant, 1, context) for context in (128, 2048) for variant in variants]
    write_measurement(out, made_up(rows))
    stale = tmp_path / "bench-itl.png"
    stale.write_bytes(b"of an older file, with more batches")
    assert main(["bench", "--plot", str(out), "--context", "2048", "--json"]) == 0
    assert not stale.exists()
    told = json.loads(capsys.readouterr().out)
    assert told["pictures"] == [str(tmp_path / "bench-waterfall.png")]
    assert main(["bench", "--plot", str(out), "--context", "4096"]) == 2
    error = capsys.readouterr().err
    assert "no variant has a result of any shape at context 4096" in error
    assert main(["bench", "--plot", str(out), "--context", "128,2048"]) == 2
    assert "--context 128,2048: with --plot, give one" in capsys.readouterr().err
    write_measurement(out, made_up([rows[0], {"shape": "x"}]))
    assert main(["bench", "--plot", str(out)]) == 2
    assert "row 2: no 'status' in it: another version wrote it" in capsys.readouterr().err
    assert main(["bench", "--plot", str(out), "--resume"]) == 2
    assert "--resume: with --plot nothing is measured" in capsys.readouterr().err
    assert main(["bench", "--plot", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (("rows",), {}, "rows is {}, expected a list"),
        (("rows",), ["x"], "row 1: "),
        (("rows", 0, "batch"), -1, "row 1: batch is -1, expected a whole number from 1 on"),
        (("rows", 0, "batch"), True, "row 1: batch is True"),
        (("rows", 0, "variant"), 7, "row 1: variant is 7, expected words"),
        (("rows", 0, "status"), "lost", "row 1: "),
        (("rows", 0, "runs"), 7, "row 1: "),
        (("rows", 0, "itl_us"), math.nan, "row 1: "),
        (("rows", 0, "itl_us", "median"), math.nan, "row 1: itl is nan, expected a number"),
        (("rows", 0, "itl_us", "median"), 0, "row 1: itl_us is 0, expected a number"),
        (("rows", 0, "gate"), {}, "row 1: no 'passed' in it"),
        (("copy_bandwidth_gb_s",), "fast", "bench.json: "),
        (("copy_bandwidth_gb_s",), {}, "no 'median' in it"),
        (("rounds",), "eight", "rounds is 'eight', expected a whole number"),
        (("rows", 0, "runs"), [], "row 1: runs is empty"),
        (("others",), 7, "others is 7, expected a list"),
        (("others",), [{"status": "measured"}], "others: row 1: "),
        (("others", 0, "batch"), "x", "others: row 1: batch is 'x', expected a whole number"),
        (("others", 0, "itl"), {"median": "fast"}, "others: row 1: "),
        (("others", 0, "status"), "gate failed", "others: row 1: status is 'gate failed'"),
    ],
)
def test_a_spoilt_file_is_refused_by_row_and_field_before_anything_is_drawn(
    place: tuple[Any, ...], value: object, says: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out = tmp_path / "bench.json"
    write_measurement(out, made_up([made_up_row("ours-eager", 1, 128)]))
    data = json.loads(out.read_text())
    inner = data["figures"]
    inner["others"] = [OtherRow("tiny", 1, 128, "vllm", NOT_RUN, "not here").as_json()]
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    out.write_text(json.dumps(data))
    assert main(["bench", "--plot", str(out)]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert "somebody has edited it: measure again" in told
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]


def test_a_benchmark_that_timed_nothing_fails_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench.json"
    rows = [Row("tiny", 1, 40, name, NOT_RUN, f"no {name}").as_json() for name in ("one", "two")]
    write_measurement(out, made_up(rows))
    monkeypatch.setattr(bench_command, "_measure", lambda *_: out)
    assert main(["bench", "-o", str(out)]) == 1
    assert "none of 2 arms was timed; one: no one (" in capsys.readouterr().err


def test_measurements_go_into_a_json_file_or_the_table_would_be_written_over_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "-o", "bench.md"]) == 2
    assert "bench.md: expected a name that ends in .json" in capsys.readouterr().err


def test_the_help_tells_of_variants_gate_processes_and_pictures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    told = capsys.readouterr().out
    for word in ("--plot", "--processes", "-itl.png", "-crossover.png", "-waterfall.png", "gate",
                 "reached, missed, partly measured", "--resume", "--minutes"):  # fmt: skip
        assert word in told
    assert "--process K" not in told


def test_rows_are_on_disk_before_the_next_variant_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: DecodeSetup) -> Variant:
        raise KeyboardInterrupt

    kind = VariantKind(interrupted, "full")
    monkeypatch.setitem(variants_room.VARIANTS, "interrupted", kind)
    out = tmp_path / "bench.json"
    assert main([*WORDS, "-o", str(out), "--arms", "ours-eager,interrupted,null"]) == 130
    rows = read_measurement(out).figures["rows"]
    assert [row["variant"] for row in rows] == ["ours-eager"]


def test_an_arm_that_takes_its_process_with_it_is_named_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, found = tmp_path / "bench.json", []

    def killed(setup: DecodeSetup) -> Variant:
        found.extend(read_measurement(out).figures["rows"])  # what a kill just now would leave
        return OursEager(setup)

    monkeypatch.setitem(variants_room.VARIANTS, "killed", VariantKind(killed, "eager"))
    assert main([*WORDS, "-o", str(out), "--arms", "killed"]) == 0
    assert [(row["variant"], row["reason"]) for row in found] == [("killed", bench_file.KILLED)]
    (row,) = read_measurement(out).figures["rows"]
    assert row["status"] == "measured"


def test_a_broken_device_ends_the_process_and_its_arm_is_tried_again_after_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """After an illegal address CUDA says the same to everything: no row may come of that."""
    error, tried, works = "CUDA error: an illegal memory access", [], emulator.synchronize
    broken: list[bool] = []

    def breaks(_: DecodeSetup) -> Variant:
        tried.append("breaks")
        broken.append(True)
        raise RuntimeError(error)

    def after(setup: DecodeSetup) -> Variant:
        tried.append("after")
        return OursEager(setup)

    def synchronize() -> None:
        if broken:
            raise RuntimeError(error)
        works()

    for name, make in (("breaks", breaks), ("after", after)):
        monkeypatch.setitem(variants_room.VARIANTS, name, VariantKind(make, "eager"))
    monkeypatch.setattr(emulator, "synchronize", synchronize)
    words = [*WORDS, "-o", str(tmp_path / "bench.json"), "--arms", "breaks,after"]
    assert main(words) != 0
    assert "breaks has left no device to this process" in capsys.readouterr().err
    (row,) = read_measurement(tmp_path / "bench.json").figures["rows"]
    assert row["reason"] == f"RuntimeError: {error}"
    broken.clear()
    assert main([*words, "--resume"]) != 0
    assert tried == ["breaks", "after", "breaks"]
    rows = read_measurement(tmp_path / "bench.json").figures["rows"]
    assert {row["variant"]: row["status"] for row in rows} == {
        "breaks": "not run", "after": "measured",
    }  # fmt: skip


def test_resuming_refuses_another_effort(tmp_path: Path, capsys: Any) -> None:
    words = [*WORDS, "-o", str(tmp_path / "b.json"), "--arms", "ours-eager"]
    assert main(words) == 0
    assert main([*words, "--resume", "--rounds", "4"]) == 2
    assert "measured with rounds 2, this is 4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--arms", "ours-grpah"], "no variant 'ours-grpah': use some of null, hf-eager"),
        (["--rounds", "3"], "--rounds 3: expected an even number"),
        (["--batch", "0"], "--batch and --context: expected numbers of 1 or more"),
        (["--shape", "qwen9"], "shape 'qwen9': expected one of"),
        (["--spec", "h900"], "no card 'h900'"),
        (["--processes", "11"], "--processes 11: expected 1 to 10"),
        (["--minutes", "0"], "--minutes 0: expected more than 0"),
    ],
)
def test_bad_input_is_one_clear_line(words: list[str], line: str, capsys: Any) -> None:
    assert main(["bench", "--device", "cpu", *words]) == 2
    assert line in capsys.readouterr().err


def test_without_torch_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    for command in ("bench", "calibrate"):
        assert main([command]) == 2
        error = capsys.readouterr().err
        assert f"{command} needs PyTorch, which is not installed: pip install" in error
        assert error.count("\n") == 1


@pytest.mark.gpu_slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
def test_on_a_gpu_every_variant_runs_and_the_profiler_sees_its_kernels(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    here = graphs_for("cuda")  # a GPU before sm_90 has no PDL
    variants = [name for name, kind in VARIANTS.items() if kind.why_not(here) is None]
    variants.remove("compile-max-autotune")  # minutes
    words = ["--shape", "tiny", "--batch", "2", "--context", "40", "--rounds", "2"]
    words += ["--processes", "1"]  # how several are put together, rows of numbers can tell
    assert main(["bench", *words, "--arms", ",".join(variants), "-o", str(out)]) == 0
    rows = {row["variant"]: row for row in load_evidence(out).figures["rows"]}
    assert {name: row.get("reason") for name, row in rows.items()} == dict.fromkeys(variants)
    assert rows["ours-graph"]["launches_a_call"] == 1
    assert rows["ours-graph"]["kernels_a_call"] > 50
    assert rows["ours-eager"]["launches_a_call"] >= rows["ours-eager"]["kernels_a_call"]
