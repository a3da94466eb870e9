"""The benchmark: arms that decode the same, a gate that stops the wrong ones, honest clocks, rows
that survive an interrupt."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch._C._autograd import DeviceType  # noqa: E402

from mini_engine.capacity import kv_bytes_per_token, read_bytes  # noqa: E402
from mini_engine.cli import main  # noqa: E402
from mini_engine.cli.bench import tiny_shape  # noqa: E402
from mini_engine.config import named_shape  # noqa: E402
from mini_engine.cuda import arms as arms_room  # noqa: E402
from mini_engine.cuda import bench, bench_table, gate, timing  # noqa: E402
from mini_engine.cuda.arms import ARMS, ArmKind  # noqa: E402
from mini_engine.cuda.backend import graphs_for  # noqa: E402
from mini_engine.cuda.evidence import Measurement, load_evidence, read_measurement  # noqa: E402
from mini_engine.cuda.hf_arms import HuggingFaceStatic  # noqa: E402
from mini_engine.cuda.op_record import OpRecorder  # noqa: E402
from mini_engine.cuda.plain_arms import OursCompiled, OursEager, OursGraph  # noqa: E402
from mini_engine.cuda.stage import Arm, Stage, float32_stage, set_stage  # noqa: E402
from mini_engine.cuda.weights import random_weights  # noqa: E402
from mini_engine.hardware import load_spec  # noqa: E402
from mini_engine.oplists import StepShape, step_ops  # noqa: E402
from tests.torch_helpers import CPU, DEVICES, FAMILIES, TOLERANCE  # noqa: E402

HERE = [name for name, kind in ARMS.items() if kind.why_not(graphs_for("cpu")) is None]
H200 = load_spec("h200")
QUICK = bench.Effort(rounds=2, steps=2)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def stage_of(
    family: str = "qwen3",
    dtype: torch.dtype = torch.float32,
    *,
    batch: int = 2,
    context: int = 40,
    room: int = 112,
    device: str = "cpu",
) -> Stage:
    # head_dim 16: the least that the Triton kernels take
    config = replace(FAMILIES[family], max_position_embeddings=256, vocab_size=200, head_dim=16)
    weights = random_weights(config, torch.device(device), dtype, seed=0)
    return set_stage(graphs_for(device), weights, batch, context, room)


def uncompiled(function: Any) -> Any:
    return function


def traced(function: Any) -> Any:
    """torch.compile's own tracing, without the code generator that needs a C++ compiler or GPU."""
    return torch.compile(function, backend="aot_eager", dynamic=False)


# ---------------------------------------------------------------- arms

MAKE: dict[str, Callable[[Stage], Arm]] = {
    **{name: ARMS[name].make for name in HERE},
    "hf-static": lambda stage: HuggingFaceStatic(stage, uncompiled),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", MAKE)
def test_every_arm_decodes_what_the_plain_model_decodes(
    name: str, family: str, device: str
) -> None:
    stage = stage_of(family, device=device)
    plain, arm = OursEager(stage), MAKE[name](stage)
    arm.prepare()
    for context in (stage.context, 33, stage.context):  # it can be placed again and again
        wanted, tokens = gate_walk(plain, context, 8)
        logits, sampled = gate_walk(arm, context, 8)
        assert tokens.tolist() == sampled.tolist()
        assert wanted.abs().max() > 0.5  # not a comparison of zeros
        torch.testing.assert_close(logits, wanted, atol=TOLERANCE, rtol=0)
    arm.release()


def gate_walk(arm: Arm, context: int, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`gate.walk` from another context."""
    moved = SimpleNamespace(
        place=lambda first, _: arm.place(first, context),
        step=arm.step, feed=arm.feed, logits=arm.logits, tokens=arm.tokens,
    )  # fmt: skip
    first = torch.arange(3, 5, dtype=torch.int32)
    return gate.walk(moved, first, steps)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [lambda s: OursCompiled(s, traced), lambda s: HuggingFaceStatic(s, traced)],
    ids=["ours", "transformers"],
)
def test_a_step_can_be_traced_by_torch_compile(make: Callable[[Stage], Arm]) -> None:
    stage = stage_of()
    plain, arm = OursEager(stage), make(stage)
    arm.prepare()
    wanted, tokens = gate_walk(plain, 40, 4)
    logits, sampled = gate_walk(arm, 40, 4)
    assert tokens.tolist() == sampled.tolist()
    torch.testing.assert_close(logits, wanted, atol=TOLERANCE, rtol=0)
    arm.release()


def test_our_step_is_one_graph_to_torch_compile() -> None:
    whole = OursCompiled(
        stage_of(), lambda f: torch.compile(f, backend="aot_eager", fullgraph=True, dynamic=False)
    )
    whole.prepare()  # raises at a graph break
    whole.release()


def test_a_fed_token_replaces_the_sampled_one() -> None:
    stage = stage_of()
    forced = torch.randint(200, (6, 2), dtype=torch.int32)
    walks = []
    for name in ("ours-eager", "ours-graph", "ours-piecewise", "hf-eager"):
        arm = ARMS[name].make(stage)
        arm.prepare()
        walks.append(gate.walk(arm, stage.first_tokens, 6, forced)[0])
        free = gate.walk(arm, stage.first_tokens, 6)[0]
        assert not torch.allclose(walks[-1][1:], free[1:], atol=TOLERANCE)
    for walk in walks[1:]:
        torch.testing.assert_close(walk, walks[0], atol=TOLERANCE, rtol=0)


def test_several_steps_a_replay_take_no_token_from_outside() -> None:
    with pytest.raises(ValueError, match="8 steps a replay feed themselves"):
        OursGraph(stage_of(), 8).feed(torch.zeros(2, dtype=torch.int32))


def test_a_stage_refuses_what_the_model_or_its_room_cannot_hold() -> None:
    with pytest.raises(ValueError, match="context 300 needs room for 320 tokens: tiny reaches 256"):
        stage_of(context=300, room=310)
    stage = stage_of()
    with pytest.raises(ValueError, match="context 113: this stage has room for 1 to 112"):
        stage.place(stage.inputs(), stage.first_tokens, 113)


def test_arms_that_cannot_run_here_say_so_in_one_line() -> None:
    for kind in ARMS.values():
        reason = kind.why_not(graphs_for("cpu"))
        assert reason is None or ("GPU" in reason and "\n" not in reason)
    assert {"hf-eager", "ours-eager", "ours-graph", "ours-piecewise"} <= set(HERE)


# ---------------------------------------------------------------- op lists


def test_recorded_ops_of_transformers_are_those_of_the_op_list() -> None:
    stage = stage_of("qwen3", torch.bfloat16)
    arm = ARMS["hf-eager"].make(stage)
    arm.prepare()
    arm.place(stage.first_tokens, 40)
    recorded, listed = arm.ops(), step_ops(stage.model.config, StepShape.decode(2, 40), "hf56")
    # positions come from outside (no arange, no add); feeding back is a copy and an add
    assert abs(len(recorded) - len(listed)) <= 2
    products = [op for op in listed if "proj" in op.name or "lm_head" in op.name]
    seen = [op for op in recorded if op.flops]
    for op, wanted in zip(
        [op for op in seen if op.name != "bmm" or op.flops == products[0].flops][-1:],
        products[-1:],
        strict=True,
    ):
        assert op.bytes == wanted.bytes  # the head: weights, row and logits once each
        assert op.flops == wanted.flops


def test_a_lookup_is_charged_for_its_rows_and_not_for_the_table() -> None:
    table, rows = torch.zeros(1000, 8), torch.tensor([3, 5])
    recorder = OpRecorder()
    with recorder:
        picked = table.index_select(0, rows)
        table.index_copy_(0, rows, picked)
        picked.view(-1).add_(1)
        torch.empty(7)
        with recorder.live():
            picked + picked
    names = [(op.name, op.bytes, op.splitting) for op in recorder.ops]
    assert names == [
        ("index_select", 2 * 64 + 16, False),
        ("index_copy_", 64 + 16 + 64, False),
        ("add_", 64 + 64, False),  # a view launches nothing, and neither does empty
        ("add", 3 * 64, True),
    ]


def test_attention_and_head_of_the_piecewise_arm_are_live() -> None:
    stage = stage_of()
    ops = ARMS["ours-piecewise"].make(stage).ops()
    softmaxes = [op for op in ops if "softmax" in op.name]
    assert len(softmaxes) == stage.model.config.num_layers
    assert all(op.splitting for op in softmaxes)
    assert not all(op.splitting for op in ops)
    assert ops[-1].splitting
    assert len(ops) == len(ARMS["ours-eager"].make(stage).ops())


# ---------------------------------------------------------------- the gate


@dataclass
class Spoiled:
    """An arm with something added to its logits."""

    arm: Arm
    spoil: Callable[[torch.Tensor], torch.Tensor]
    steps_a_call: int = 1

    def logits(self) -> list[torch.Tensor]:
        return [self.spoil(one) for one in self.arm.logits()]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.arm, name)


def gate_of(stage: Stage) -> gate.Gate:
    wide = float32_stage(stage, gate.CONTEXT, gate.room_of(stage.batch))
    return gate.Gate(stage, OursEager(stage), OursEager(wide))


def test_the_gate_lets_pass_what_plain_bf16_does_and_better_and_nothing_worse() -> None:
    stage = stage_of("qwen3", torch.bfloat16)
    judge, generator = gate_of(stage), torch.Generator().manual_seed(0)
    plain = judge.judge(OursEager(stage))
    assert plain.passed
    assert plain.forced is not None
    assert plain.forced.kl == plain.forced.plain_kl > 0
    assert plain.forced.positions == 2 * 64
    truth = OursEager(float32_stage(stage, gate.CONTEXT, gate.room_of(2)))
    better = judge.judge(truth)
    assert better.passed
    assert better.produced is not None
    assert better.produced.kl < 1e-9 < better.produced.plain_kl
    assert better.produced.agreement == 1.0

    def noisy(logits: torch.Tensor) -> torch.Tensor:
        return logits.float() + 0.05 * torch.randn(logits.shape, generator=generator)

    worse = judge.judge(Spoiled(OursEager(stage), noisy))
    assert not worse.passed
    assert worse.reason.startswith("gate: teacher-forced: KL")


def test_the_gate_stops_an_arm_that_leaves_a_request_out() -> None:
    stage = stage_of("qwen3", torch.bfloat16)
    arm = Spoiled(OursEager(stage), lambda logits: logits.roll(1, 0))
    assert not gate_of(stage).judge(arm).passed


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_gate_stops_what_is_not_finite(value: float) -> None:
    stage = stage_of("qwen3", torch.bfloat16)
    arm = Spoiled(OursEager(stage), lambda logits: logits.index_fill(1, torch.tensor(7), value))
    verdict = gate_of(stage).judge(arm)
    assert not verdict.passed
    assert verdict.reason == "gate: its logits are not all finite"


@pytest.mark.parametrize("bad", ["kl_upper", "nll_upper"])
@pytest.mark.parametrize("path", ["forced", "produced"])
def test_one_bound_above_nothing_on_one_path_fails(path: str, bad: str) -> None:
    good = gate.PathErrors(64, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0)
    verdict = gate.Verdict(finite=True, forced=good, produced=good)
    assert verdict.passed
    assert verdict.reason == ""
    failed = replace(verdict, **{path: replace(good, **{bad: 1e-9})})
    assert not failed.passed
    assert "upper bounds" in failed.reason
    assert not replace(verdict, finite=False).passed


def test_kl_and_nll_are_what_their_formulas_say() -> None:
    rng = np.random.default_rng(0)
    truth, logits = rng.normal(size=(3, 2, 5)), rng.normal(size=(3, 2, 5))
    path = rng.integers(0, 5, (3, 2))
    found = gate.errors(*(torch.tensor(x) for x in (truth, logits, path)))
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (truth, logits))
    rows, columns = np.indices(path.shape)
    nll = np.abs(np.log(p[rows, columns, path]) - np.log(q[rows, columns, path]))
    np.testing.assert_allclose(found["kl"], (p * np.log(p / q)).sum(-1).ravel(), rtol=1e-12)
    np.testing.assert_allclose(found["nll"], nll.ravel(), rtol=1e-12)
    np.testing.assert_array_equal(found["agree"], (p.argmax(-1) == q.argmax(-1)).ravel())


def test_a_large_batch_is_looked_at_for_fewer_steps_and_never_for_none() -> None:
    assert [gate.steps_of(batch) for batch in (1, 16, 32, 256, 4096)] == [64, 64, 32, 4, 4]


# ---------------------------------------------------------------- clocks


@dataclass
class Clockwork:
    """Stands in for a device and its arms: every call moves one clock."""

    now_us: float = 0.0
    order: list[str] = field(default_factory=list)

    def backend(self) -> Any:
        clock = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = clock.now_us

            def synchronize(self) -> None: ...

            def elapsed_time(self, end: Any) -> float:
                return (end.at - self.at) / 1e3

        return SimpleNamespace(Event=Event, synchronize=lambda: None)

    def arm(self, name: str, us: float, steps_a_call: int = 1) -> Any:
        def step() -> None:
            self.now_us += us * steps_a_call

        def rewind() -> None:
            self.order.append(name)
            self.now_us += 1e6  # what a lap must not count

        return SimpleNamespace(steps_a_call=steps_a_call, rewind=rewind, step=step)


def test_a_lap_counts_its_steps_and_nothing_else() -> None:
    clock = Clockwork()
    for steps_a_call in (1, 8):
        lap = timing.lap(clock.backend(), clock.arm("a", 5.0, steps_a_call), 20)
        assert lap.event_us == pytest.approx(5.0)


def test_laps_come_in_balanced_order_after_one_of_each_that_does_not_count() -> None:
    clock = Clockwork()
    one, other = timing.paired_laps(
        clock.backend(), clock.arm("a", 2.0), clock.arm("b", 3.0), steps=4, rounds=4
    )
    assert "".join(clock.order) == "ab" + "abbaabba"
    assert [len(one), len(other)] == [4, 4]
    ratio = timing.ratio_interval(one, other)
    assert ratio.median == pytest.approx(1.5)


@given(st.integers(1, 20))
def test_each_of_two_comes_first_equally_often(pairs: int) -> None:
    order = timing.balanced_order("a", "b", 2 * pairs)
    assert order.count("a") == order.count("b") == 2 * pairs
    assert order[::2].count("a") == pairs
    for odd in (2 * pairs - 1, -1):
        with pytest.raises(ValueError, match="an even number"):
            timing.balanced_order("a", "b", odd)


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=30))
def test_an_interval_holds_its_median(samples: list[float]) -> None:
    found = timing.median_interval(samples)
    assert min(samples) <= found.low <= found.median <= found.high <= max(samples)
    assert found.median == pytest.approx(np.median(samples))
    assert found == timing.median_interval(samples)  # a fixed seed: the same twice


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng, covered = np.random.default_rng(0), 0
    for _ in range(200):
        found = timing.median_interval(rng.normal(100, 5, 25).tolist())
        covered += found.low <= 100 <= found.high
    assert 0.88 <= covered / 200 <= 1.0  # 95%, give or take three deviations of 200 draws


def test_no_samples_are_no_measurement() -> None:
    with pytest.raises(ValueError, match="no samples"):
        timing.median_interval([])
    with pytest.raises(ValueError, match="1 and 0 laps"):
        timing.ratio_interval([timing.Lap(1.0, 1.0)], [])


# ---------------------------------------------------------------- rows


def rows_of(names: list[str], effort: bench.Effort = QUICK, **point: Any) -> list[bench.Row]:
    config = replace(tiny_shape(), dtype="bfloat16")
    weights = random_weights(config, CPU, torch.bfloat16, seed=0)
    where = bench.Point("tiny", **{"batch": 1, "context": 40, **point})
    backend = graphs_for("cpu")
    return list(bench.bench_point(backend, weights, where, names, effort, H200, 4300.0))


def test_a_row_holds_what_a_reader_needs_to_doubt_it() -> None:
    (row,) = rows_of(["ours-graph-k8"])
    assert row["status"] == "measured"
    assert row["steps_a_call"] == 8
    config = replace(tiny_shape(), dtype="bfloat16")
    assert row["bytes_to_move"] == read_bytes(config) + 40 * kv_bytes_per_token(config)
    gb_s = row["bytes_to_move"] / row["itl_us"]["median"] / 1e3
    assert row["achieved_gb_s"] == pytest.approx(gb_s, abs=1e-3)
    assert row["percent_of_copy"] == pytest.approx(100 * gb_s / 4300, abs=1e-3)
    assert row["itl_us"]["samples"] == 2
    assert row["gate"]["passed"]
    assert row["kernels_a_call"] is None  # no profiler sees kernels on a CPU


def test_the_prediction_leaves_out_what_no_lap_contains() -> None:
    ops = step_ops(named_shape("qwen3-0.6b"), StepShape.decode(1, 512), "fused9")
    full = bench.predicted_us(ops, 1, H200, "full")
    busy = sum(op.bytes for op in ops) / (H200.copy_bandwidth_gb_s * 1e3)
    gaps = len(ops) * (H200.kernel_floor_us + H200.graph_gap_us)
    # one launch, 2.8 µs, may stand before the first kernel; a copy would be 6 µs and more
    assert full == pytest.approx(busy + gaps, abs=4)
    assert bench.predicted_us(ops * 8, 8, H200, "full") == pytest.approx(full, rel=0.01)
    eager = bench.predicted_us(ops, 1, H200, "eager")
    head_us = ops[-2].bytes / (H200.copy_bandwidth_gb_s * 1e3)  # the CPU is ahead after this one
    assert eager == pytest.approx(len(ops) * H200.cpu_op_us + head_us, rel=0.01)


def test_an_arm_that_breaks_does_not_take_the_others_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaks(_: Stage) -> Arm:
        raise RuntimeError("it broke\nin many lines")

    def no_room(_: Stage) -> Arm:
        raise torch.OutOfMemoryError("Tried to allocate")

    def add(name: str, make: Callable[[Stage], Arm], gated: bool) -> None:
        kind = ArmKind("", "full", make, lambda _: None, gated)
        monkeypatch.setitem(arms_room.ARMS, name, kind)

    add("broken", breaks, True)
    add("large", no_room, True)
    add("wrong", lambda s: Spoiled(OursEager(s), lambda x: x * 1.1), True)  # type: ignore[arg-type]
    add("wrong-baseline", lambda s: Spoiled(OursEager(s), lambda x: x * 1.1), False)  # type: ignore[arg-type]
    names = ["broken", "large", "wrong", "wrong-baseline", "ours-eager"]
    rows = {row["arm"]: row for row in rows_of(names)}
    assert rows["broken"]["reason"] == "RuntimeError: it broke"
    assert rows["large"]["reason"] == "out of memory: Tried to allocate"
    assert rows["wrong"]["status"] == "not run"
    assert rows["wrong"]["reason"].startswith("gate: ")
    assert rows["wrong-baseline"]["status"] == "measured"
    assert not rows["wrong-baseline"]["gate"]["passed"]
    assert rows["ours-eager"]["status"] == "measured"


def test_a_point_that_cannot_be_set_up_is_told_arm_by_arm() -> None:
    rows = rows_of(["ours-eager", "ours-graph"], context=5000)
    assert [row["status"] for row in rows] == ["not run"] * 2
    assert "tiny reaches 512" in rows[0]["reason"]


def test_when_the_time_is_over_no_arm_is_started() -> None:
    rows = rows_of(["ours-eager"], bench.Effort(2, 2, deadline=0.0))
    assert rows[0]["reason"].endswith("go on with --resume")


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


def test_the_table_shows_every_row_and_why_an_arm_did_not_run() -> None:
    point = bench.Point("tiny", 1, 40)
    rows = [*rows_of(["hf-eager", "ours-graph"]), bench.not_run(point, "odd|arm", "no | GPU")]
    rows.insert(1, bench.not_run(replace(point, batch=2), "ours-graph", "why"))
    figures = {"copy_bandwidth_gb_s": {"median": 4300.0}, "spec": "h200", "rounds": 2, "steps": 2,
               "anchor": "ours-graph", "rows": rows}  # fmt: skip
    made = Measurement("bench", True, "gpu", "d", "t", "tr", "2026", "c", "line", figures)
    text = bench_table.markdown(made)
    assert text.startswith("**Emulated on a CPU")
    tables = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(tables) == 2 + 3 + 2 + 1  # two heads with their rules, the rows of two points
    assert {line.replace("\\|", "").count("|") for line in tables} == {len(bench_table.HEADER) + 1}
    assert "not run: no \\| GPU" in text
    assert not bench_table.markdown(replace(made, emulated=False)).startswith("**")
    with pytest.raises(ValueError, match="a calibration, expected a bench"):
        bench_table.markdown(replace(made, kind="calibration"))


WORDS = ["bench", "--device", "cpu", "--quick", "--batch", "1", "--rounds", "2", "--steps", "2"]


def test_the_command_measures_marks_its_file_and_resumes_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench.json"
    words = [*WORDS, "-o", str(out)]
    assert main([*words, "--arms", "ours-graph,compile-default"]) == 0
    assert "no evidence about any GPU" in capsys.readouterr().out
    with pytest.raises(ValueError, match="no evidence"):
        load_evidence(out)
    first = {row["arm"]: row for row in read_measurement(out).figures["rows"]}
    assert first["ours-graph"]["status"] == "measured"
    assert first["compile-default"]["reason"].endswith("needs an NVIDIA GPU")
    assert main([*words, "--arms", "null,ours-graph,ours-eager", "--resume", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    rows = {row["arm"]: row for row in read_measurement(out).figures["rows"]}
    assert list(rows) == ["ours-graph", "null", "ours-eager"]
    assert rows["ours-graph"] == first["ours-graph"]  # kept, not measured again
    assert told["rows"] == list(rows.values())
    table = out.with_suffix(".md").read_text()
    assert "| ours-eager |" in table
    assert str(tmp_path) not in table + out.read_text()


def test_rows_are_on_disk_before_the_next_arm_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Stage) -> Arm:
        raise KeyboardInterrupt

    kind = ArmKind("", "full", interrupted, lambda _: None, True)
    monkeypatch.setitem(arms_room.ARMS, "interrupted", kind)
    out = tmp_path / "bench.json"
    assert main([*WORDS, "-o", str(out), "--arms", "ours-eager,interrupted,null"]) == 130
    rows = read_measurement(out).figures["rows"]
    assert [row["arm"] for row in rows] == ["ours-eager"]


def test_resuming_refuses_another_effort(tmp_path: Path, capsys: Any) -> None:
    words = [*WORDS, "-o", str(tmp_path / "b.json"), "--arms", "ours-eager"]
    assert main(words) == 0
    assert main([*words, "--resume", "--rounds", "4"]) == 2
    assert "measured with rounds 2, this is 4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--arms", "ours-grpah"], "no arm 'ours-grpah': use some of null, hf-eager"),
        (["--rounds", "3"], "--rounds 3: expected an even number"),
        (["--batch", "0"], "--batch and --context: expected numbers of 1 or more"),
        (["--shape", "qwen9"], "shape 'qwen9': expected one of"),
        (["--spec", "h900"], "no device 'h900'"),
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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
def test_on_a_gpu_every_arm_runs_and_the_profiler_sees_its_kernels(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    arms = [name for name in ARMS if name != "compile-max-autotune"]  # minutes
    words = ["--shape", "tiny", "--batch", "2", "--context", "40", "--rounds", "2"]
    assert main(["bench", *words, "--arms", ",".join(arms), "-o", str(out)]) == 0
    rows = {row["arm"]: row for row in load_evidence(out).figures["rows"]}
    assert {name: row.get("reason") for name, row in rows.items()} == dict.fromkeys(arms)
    assert rows["ours-graph"]["launches_a_call"] == 1
    assert rows["ours-graph"]["kernels_a_call"] > 50
    assert rows["ours-eager"]["launches_a_call"] >= rows["ours-eager"]["kernels_a_call"]
