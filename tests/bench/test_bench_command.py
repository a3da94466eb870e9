"""The benchmark from a row to the command: what is written when, what is kept, what is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")


from mini_engine.bench import bench, gate  # noqa: E402
from mini_engine.bench import variants as variants_room  # noqa: E402
from mini_engine.bench.decode_setup import DecodeSetup, Variant, build_setup  # noqa: E402
from mini_engine.bench.evidence import read_measurement, write_measurement  # noqa: E402
from mini_engine.bench.rows import GATE_FAILED, NOT_RUN, Point, Row, measured_steps  # noqa: E402
from mini_engine.bench.variants import (  # noqa: E402
    ANCHOR,
    COMPILED,
    VARIANTS,
    OursCompiled,
    OursEager,
    VariantKind,
)
from mini_engine.cli import main  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for, measured_dtype  # noqa: E402
from mini_engine.cuda.weights import Weights, random_weights  # noqa: E402
from mini_engine.model.config import named_shape, tiny_shape  # noqa: E402
from mini_engine.step.cards import load_spec  # noqa: E402
from mini_engine.step.kernels import StepShape, step_ops  # noqa: E402
from mini_engine.step.run import kernel_us  # noqa: E402
from mini_engine.step.storage import stored_as  # noqa: E402
from tests.support.gate_helpers import Spoiled  # noqa: E402
from tests.support.torch_helpers import CPU  # noqa: E402

H200 = load_spec("h200", engine="launch-bound")
QUICK = bench.Bench(graphs_for("cpu"), lambda _: H200, copy_gb_s=4300.0, rounds=2, steps=2)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No gradients, and a gate of few steps: `test_gate.py` is about the gate."""
    monkeypatch.setattr(gate, "STEPS", (4, 16))
    with torch.no_grad():
        yield


# ---------------------------------------------------------------- rows


def tiny_weights(dtype: torch.dtype = torch.bfloat16) -> Weights:
    return random_weights(tiny_shape(), CPU, dtype, seed=0)


def rows_of(names: list[str], run: bench.Bench = QUICK, context: int = 40) -> list[Row]:
    return list(run.rows(tiny_weights(), Point("tiny", 1, context), names))


def test_a_row_holds_what_a_reader_needs_to_doubt_it() -> None:
    (row,) = rows_of(["ours-graph-k8"])
    assert (row.status, row.steps_a_call, row.itl.samples) == ("measured", 8, 2)
    config = tiny_shape()
    assert row.bytes_to_move == stored_as(config).read + 40 * stored_as(config).kv_bytes_per_token
    gb_s = row.bytes_to_move / row.itl_us / 1e3
    assert row.achieved_gb_s == pytest.approx(gb_s, rel=1e-4)
    assert row.percent_of_copy == pytest.approx(100 * gb_s / 4300, rel=1e-4)
    assert measured_steps([row.as_json()]) == [row]


def test_a_row_is_read_as_it_was_written() -> None:
    (measured,) = rows_of(["ours-eager"])
    absent = Row("tiny", 1, 40, "x", NOT_RUN, "no room")
    wrong = replace(absent, status=GATE_FAILED, gate={"passed": False})
    for row in (measured, absent, wrong):
        assert Row.from_json(json.loads(json.dumps(row.as_json()))) == row
    with pytest.raises(ValueError, match="ours-eager"):
        Row.from_json({k: v for k, v in measured.as_json().items() if k != "itl"})
    with pytest.raises(ValueError, match="runs"):
        Row.from_json({**measured.as_json(), "runs": []})


def test_the_prediction_leaves_out_what_no_lap_contains() -> None:
    ops = step_ops(named_shape("qwen3-0.6b"), StepShape.decode(1, 512), "fused9")
    full = bench.predicted_us(ops, 1, H200, "full")
    # one launch, 2.8 µs, may stand before the first kernel; a copy would be 6 µs and more
    busy = sum(kernel_us(op, H200) for op in ops) + len(ops) * H200.graph_gap_us
    assert full == pytest.approx(busy, abs=4)
    assert bench.predicted_us(ops * 8, 8, H200, "full") == pytest.approx(full, rel=0.01)


def test_what_runs_with_pdl_is_predicted_with_it_and_nothing_else_is() -> None:
    assert {name for name, kind in VARIANTS.items() if kind.pdl} == {
        name for name in VARIANTS if name.startswith("graph-5-pdl")
    }
    ops = step_ops(named_shape("qwen3-0.6b"), StepShape.decode(1, 512), "fused5")
    plain, early = (bench.predicted_us(ops, 1, H200, "full", pdl=pdl) for pdl in (False, True))
    assert plain - early == pytest.approx((len(ops) - 1) * H200.pdl_saves_us)


def test_what_a_compiler_makes_of_the_ops_is_predicted_by_its_own_list() -> None:
    setup = build_setup(graphs_for("cpu"), tiny_weights(), 1, 40, 64)
    compiled = load_spec("h200", engine="torch-compile")
    own = step_ops(setup.model.config, StepShape.decode(1, 40), compiled.ops)
    assert OursCompiled(setup, lambda step: step).ops(compiled.ops) == own
    assert OursEager(setup).ops(compiled.ops) != own


def add(monkeypatch: pytest.MonkeyPatch, name: str, make: Callable[[DecodeSetup], Any],
        **more: Any) -> None:  # fmt: skip
    monkeypatch.setitem(variants_room.VARIANTS, name, VariantKind(make, "full", **more))


def test_a_variant_that_breaks_does_not_take_the_others_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaks(_: DecodeSetup) -> Variant:
        raise RuntimeError("it broke\nin many lines")

    def no_room(_: DecodeSetup) -> Variant:
        raise torch.OutOfMemoryError("Tried to allocate")

    add(monkeypatch, "broken", breaks)
    add(monkeypatch, "large", no_room)
    add(monkeypatch, "wrong", lambda s: Spoiled(OursEager(s), lambda x: x * 1.1))
    add(monkeypatch, "wrong-too", lambda s: Spoiled(OursEager(s), lambda x: x * 1.1), gated=False)
    names = ["broken", "large", "wrong", "wrong-too", "ours-eager"]
    rows = {row.variant: row for row in rows_of(names)}
    assert rows["broken"].reason == "RuntimeError: it broke"
    assert rows["large"].reason == "out of memory: Tried to allocate"
    assert rows["wrong"].status == GATE_FAILED  # and has no time
    assert (rows["wrong-too"].status, rows["wrong-too"].failed_gate) == ("measured", True)
    in_file = [row.as_json() for row in rows.values()]
    assert {step.variant for step in measured_steps(in_file)} == {"ours-eager"}


def test_after_a_compiled_variant_the_anchor_is_prepared_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A compiler's graphs clear the workspaces of cuBLAS that the anchor's graph holds."""
    told: list[str] = []

    class Anchor(OursEager):
        def prepare(self) -> None:
            told.append("anchor")

        def release(self) -> None:
            told.append("released")

    class Named(OursEager):
        def prepare(self) -> None:
            told.append("arm")

    add(monkeypatch, ANCHOR, Anchor)
    add(monkeypatch, "plain-arm", Named)
    add(monkeypatch, "compiled-arm", Named, engine=COMPILED)
    rows_of(["plain-arm", "compiled-arm", "plain-arm"])
    assert told == ["anchor", "arm", "arm", "released", "anchor", "arm", "released"]


def test_a_baseline_whose_graphs_torch_left_out_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Skipping(OursEager):
        def prepare(self) -> None:
            torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] += 2

    add(monkeypatch, "skipping", Skipping)
    told = [row.no_graph for row in rows_of(["skipping", "ours-graph", "ours-eager"])]
    assert told == ["graphs left out: 2", "", ""]


def test_a_point_that_cannot_be_set_up_is_told_variant_by_variant() -> None:
    rows = rows_of(["ours-eager", "ours-graph"], context=5000)
    assert [row.status for row in rows] == ["not run"] * 2
    assert "tiny reaches 512" in rows[0].reason


# ---------------------------------------------------------------- a GPU without bf16


def test_a_gpu_without_bf16_runs_the_plain_arms_in_fp16(monkeypatch: pytest.MonkeyPatch) -> None:
    """A T4 (sm_75): our kernels say that they cannot run there, and PyTorch's own can."""
    backend = graphs_for("cpu")
    assert measured_dtype(backend) == torch.bfloat16
    for module in ("mini_engine.cuda.graphs.backend", "mini_engine.bench.variants"):
        monkeypatch.setattr(f"{module}.why_no_bf16", lambda _: "Tesla T4 (sm_75) has no bf16")
    assert measured_dtype(backend) == torch.float16
    reasons = {name: kind.why_not(backend) for name, kind in VARIANTS.items()}
    assert {name for name in ("ours-eager", "ours-graph", "hf-eager") if reasons[name]} == set()
    assert all(reasons[name] for name in ("graph-9", "graph-5", "graph-5-pdl"))


def test_the_plain_arms_pass_the_gate_in_fp16() -> None:
    names = ["ours-eager", "ours-graph", "hf-eager"]
    rows = list(QUICK.rows(tiny_weights(torch.float16), Point("tiny", 1, 40), names))
    assert measured_steps(row.as_json() for row in rows) == rows, [row.reason for row in rows]


# ---------------------------------------------------------------- the command

WORDS = ["bench", "--device", "cpu", "--rounds", "2", "--steps", "2"]


def test_the_command_measures_marks_its_file_and_resumes_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench.json"
    words = [*WORDS, "--batch", "1", "-o", str(out)]
    assert main([*words, "--arms", "ours-graph,compile-default"]) == 0
    told = capsys.readouterr().out
    assert "no evidence about any GPU" in told
    first = read_measurement(out)
    assert first.emulated
    assert [row["status"] for row in first.figures["rows"]] == ["measured", "not run"]
    assert main([*words, "--arms", "ours-graph,ours-eager", "--resume"]) == 0
    again = read_measurement(out).figures["rows"]
    assert [row["variant"] for row in again] == ["ours-graph", "ours-eager"]
    assert again[0] == first.figures["rows"][0]  # it was not measured again
    write_measurement(out, replace(first, torch="another"))
    assert main([*words, "--arms", "ours-eager", "--resume"]) == 2
    assert "another" in capsys.readouterr().err


def test_a_file_is_shown_and_drawn_again_without_measuring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench.json"
    arms = ["--arms", "ours-graph,ours-eager"]
    assert main([*WORDS, *arms, "-o", str(out)]) == 0
    for picture in tmp_path.glob("*.png"):
        picture.unlink()
    capsys.readouterr()
    assert main(["bench", "--plot", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(tmp_path.glob("*.png")) == {Path(told["picture"])}
    assert len(told["rows"]) == 4
    out.write_text(out.read_text().replace('"itl"', '"itl_ms"'))
    assert main(["bench", "--plot", str(out)]) == 2
    assert str(out) in capsys.readouterr().err


def test_where_nothing_could_be_timed_the_command_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*WORDS, "--arms", "compile-default", "-o", str(tmp_path / "bench.json")]
    assert main(words) == 1
    assert "NVIDIA GPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--arms", "graph-7"], "graph-7"),
        (["--arms", ""], "''"),
        (["--rounds", "3"], "3"),
        (["--against", "vlm"], "vlm"),
        (["--against", "vllm"], "'tiny'"),
        (["--shape", "qwen9"], "qwen9"),
        (["--plot", "no.json"], "no.json"),
    ],
)
def test_bad_input_is_one_line_that_names_the_value(
    words: list[str], value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: Any = main(["bench", "--device", "cpu", *words])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert value in capsys.readouterr().err
