"""The benchmark's arms, which decode the same, what they launch, and the clocks that time them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.measure import gate, timing  # noqa: E402
from mini_engine.cuda.measure.arms import ARMS  # noqa: E402
from mini_engine.cuda.measure.hf_arms import HuggingFaceStatic  # noqa: E402
from mini_engine.cuda.measure.op_record import OpRecorder  # noqa: E402
from mini_engine.cuda.measure.plain_arms import OursCompiled, OursEager, OursGraph  # noqa: E402
from mini_engine.cuda.measure.stage import Arm, Stage  # noqa: E402
from mini_engine.predict.oplists import StepShape, step_ops  # noqa: E402
from tests.support.gate_helpers import stage_of  # noqa: E402
from tests.support.torch_helpers import DEVICES, FAMILIES, TOLERANCE  # noqa: E402

HERE = [name for name, kind in ARMS.items() if kind.why_not(graphs_for("cpu")) is None]


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


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
    with pytest.raises(ValueError, match="context 177: this stage has room for 1 to 176"):
        stage.place(stage.inputs(), stage.first_tokens, 177)


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
    ratios = [b.event_us / a.event_us for a, b in zip(one, other, strict=True)]
    assert ratios == pytest.approx([1.5] * 4)


@given(st.integers(1, 20))
def test_each_of_two_comes_first_equally_often(pairs: int) -> None:
    order = timing.balanced_order("a", "b", 2 * pairs)
    assert order.count("a") == order.count("b") == 2 * pairs
    assert order[::2].count("a") == pairs
    for odd in (2 * pairs - 1, -1):
        with pytest.raises(ValueError, match="an even number"):
            timing.balanced_order("a", "b", odd)
