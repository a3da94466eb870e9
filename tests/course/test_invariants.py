"""Every invariant of `course/INVARIANTS.md` is held by a test of the engine: plant the fault that
the page tells of, and that test fails. A fault is a few lines of an engineer who meant well."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from types import ModuleType

import numpy as np
import pytest

from mini_engine.dispatch.dispatcher import BatchDescriptor, GraphDispatcher
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.sim import runner as sim_runner
from mini_engine.sim.capture import Graph
from mini_engine.sim.graphs import GraphRunner, StaticInputs
from mini_engine.sim.launch import Buffer
from mini_engine.sim.runner import ModelInputs, SimRunner
from tests.sim import test_faults
from tests.step import test_run
from tests.support.documents import ROOT
from tests.support.engine_helpers import sim_engine

PAGE = (ROOT / "course/INVARIANTS.md").read_text()
SENTENCES = PAGE.partition("\n## The sentences")[2].partition("\n## ")[0]
NUMBERED = re.findall(r"^\*\*(\d+)\. (.+?)\*\*(.*?)(?=^\*\*|\Z)", SENTENCES, re.M | re.S)

Planting = Callable[[pytest.MonkeyPatch], object]
FAULTS: dict[str, Planting] = {}


def fault(plant: Planting) -> Planting:
    FAULTS[plant.__name__] = plant
    return plant


def engine_with(patch: pytest.MonkeyPatch, inputs: type[ModelInputs]) -> None:
    """The engine that is right gets static inputs of that kind."""
    patch.setattr(test_faults.full_engine, "__defaults__", (inputs,))


# ---------------------------------------------------------------- the faults, in the page's order


@fault
def the_forward_in_place_of_the_replay(patch: pytest.MonkeyPatch) -> None:
    def replay(self: Graph) -> None:
        for node in self.nodes:
            self.device.submit(node)

    patch.setattr(Graph, "replay", replay)


@fault
def the_batch_as_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GraphRunner, "rung_for", lambda self, num_rows: num_rows)


@fault
def an_input_rebound(patch: pytest.MonkeyPatch) -> None:
    engine_with(patch, test_faults.RebindsTheInput)


@fault
def the_tail_kept(patch: pytest.MonkeyPatch) -> None:
    def stage(self: StaticInputs, rows: int, arrays: Mapping[str, np.ndarray]) -> None:
        view = self.view(rows)
        self.device.copy_batch([(view[name][: len(a)], a) for name, a in arrays.items()])

    patch.setattr(StaticInputs, "stage", stage)


@fault
def a_position_that_is_a_number(patch: pytest.MonkeyPatch) -> None:
    class Baked(ModelInputs):
        """What the forward would read if it were given `position` as a Python number."""

        def stage(self, rows: int, arrays: Mapping[str, np.ndarray]) -> None:
            at_capture = np.zeros_like(arrays["positions"])
            super().stage(rows, {**arrays, "positions": at_capture})

    engine_with(patch, Baked)


@fault
def a_weight_that_moved(patch: pytest.MonkeyPatch) -> None:
    capture = SimRunner.capture

    def and_move(self: SimRunner) -> None:
        capture(self)
        old, device = self.model.final_norm, self.device
        self.model.final_norm = device.upload(device.read(old))
        device.free(old)
        device.upload(np.linspace(-1, 1, len(old), dtype=np.float32))  # somebody else moves in

    patch.setattr(SimRunner, "capture", and_move)


@fault
def smallest_first(patch: pytest.MonkeyPatch) -> None:
    capture = GraphRunner.capture
    patch.setattr(GraphRunner, "capture", lambda self: capture(self, self.ladder.sizes))


@fault
def an_output_read_late(patch: pytest.MonkeyPatch) -> None:
    run_at = GraphRunner.run_at

    def and_once_more(
        self: GraphRunner, rung: int, num_rows: int, arrays: Mapping[str, np.ndarray]
    ) -> Buffer:
        out = run_at(self, rung, num_rows, arrays)
        self.inputs.clear()
        self.graphs[rung].replay()  # the next step, of nobody's tokens
        return out

    patch.setattr(GraphRunner, "run_at", and_once_more)


@fault
def attention_captured_too(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sim_runner, "SPLITTING_OPS", frozenset())


@fault
def a_block_table_of_the_capture(patch: pytest.MonkeyPatch) -> None:
    engine_with(patch, test_faults.CopiesTheBlockTableOnce)


@fault
def a_graph_of_what_nobody_fused(patch: pytest.MonkeyPatch) -> None:
    ops = test_run.step_ops
    patch.setattr(test_run, "step_ops", lambda config, shape, _: ops(config, shape, "hf56"))


@fault
def the_largest_graph_for_what_fits_none(patch: pytest.MonkeyPatch) -> None:
    dispatch = GraphDispatcher.dispatch

    def never_eager(
        self: GraphDispatcher, num_reqs: int, num_tokens: int, uniform: int | None = None
    ) -> BatchDescriptor:
        found = dispatch(self, num_reqs, num_tokens, uniform)
        decode = num_tokens == num_reqs and found.mode is CUDAGraphMode.NONE
        return self.descriptors()[0] if decode else found

    patch.setattr(GraphDispatcher, "dispatch", never_eager)


# ---------------------------------------------------------------- the page and the tests


RIGHT_WAY = "test_the_right_way_gives_every_request_its_own_tokens"
HELD = {  # fault -> the test that sees it; in the page's order
    "the_forward_in_place_of_the_replay": (
        "tests.sim.test_capture",
        "test_a_replay_is_one_cpu_call_and_its_nodes_run_back_to_back",
    ),
    "the_batch_as_key": (
        "tests.sim.test_graphs",
        "test_a_batch_is_padded_up_to_its_rung_and_sliced_back",
    ),
    "an_input_rebound": ("tests.sim.test_faults", RIGHT_WAY),
    "the_tail_kept": ("tests.sim.test_graphs", "test_padding_rows_are_zeros_not_the_last_batch"),
    "a_position_that_is_a_number": ("tests.sim.test_faults", RIGHT_WAY),
    "a_weight_that_moved": ("tests.sim.test_faults", RIGHT_WAY),
    "smallest_first": (
        "tests.sim.test_graphs",
        "test_captured_largest_first_the_small_rungs_cost_nothing",
    ),
    "an_output_read_late": ("tests.sim.test_faults", RIGHT_WAY),
    "attention_captured_too": (
        "tests.sim.test_runner",
        "test_each_step_runs_in_the_mode_it_was_dispatched_to",
    ),
    "a_block_table_of_the_capture": ("tests.sim.test_faults", RIGHT_WAY),
    "a_graph_of_what_nobody_fused": (
        "tests.step.test_run",
        "test_fusing_shortens_the_step_however_it_is_launched",
    ),
    "the_largest_graph_for_what_fits_none": (
        "tests.sim.test_faults",
        "test_a_ladder_with_a_gap_drops_batches_out_of_the_graphs",
    ),
}


def test_there_are_six_to_ten_sentences_each_with_a_fault_and_a_test() -> None:
    assert [int(number) for number, _, _ in NUMBERED] == list(range(1, len(NUMBERED) + 1))
    assert 6 <= len(NUMBERED) <= 10
    for number, sentence, rest in NUMBERED:
        assert "*Break it* with" in rest, f"{number}. {sentence}: no fault"
    told = re.findall(r"^\*Break it\* with ([\w ]+):", SENTENCES, re.M)
    assert [name.replace(" ", "_") for name in told] == list(FAULTS) == list(HELD)


@pytest.mark.parametrize("name", HELD)
def test_a_planted_fault_is_seen_by_the_test_that_holds_the_invariant(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, test = HELD[name]
    claim = _claim(importlib.import_module(module), test)
    claim()
    FAULTS[name](monkeypatch)
    with pytest.raises(SEEN_AS.get(name, AssertionError)):
        claim()


def test_one_sees_of_each_wrong_token_what_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    right = test_faults.EXPECTED
    seen = {}
    for name, (_, test) in HELD.items():
        if test == RIGHT_WAY:
            with monkeypatch.context() as patch:
                FAULTS[name](patch)
                seen[name] = test_faults.served(test_faults.full_engine())
    assert len({t for tokens in seen["an_input_rebound"].values() for t in tokens}) == 1
    for name in ("a_position_that_is_a_number", "a_weight_that_moved", "an_output_read_late"):
        assert all(seen[name][who][0] != right[who][0] for who in right), name
    moved = seen["a_weight_that_moved"]
    assert all(a != b for who in right for a, b in zip(moved[who], right[who], strict=True))
    for who in ("0", "1"):  # prompts of six in blocks of four: the fourth token needs a third block
        stale = seen["a_block_table_of_the_capture"][who]
        assert [a == b for a, b in zip(stale, right[who], strict=True)] == 3 * [True] + 5 * [False]
    assert seen["a_block_table_of_the_capture"]["2"][0] != right["2"][0]


def test_a_stale_row_also_harms_the_request_that_left_it_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Request 2 ends its prompt in row 3, which then writes K and V there again, of no context."""
    FAULTS["the_tail_kept"](monkeypatch)
    tokens = test_faults.served(test_faults.full_engine())
    assert [who for who in tokens if tokens[who] != test_faults.EXPECTED[who]] == ["2"]


def test_attention_in_the_pieces_gives_the_simulators_right_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    FAULTS["attention_captured_too"](monkeypatch)
    assert test_faults.served(sim_engine("PIECEWISE", (1, 2, 4, 32))) == test_faults.EXPECTED


# A fault that raises by itself; the others give wrong tokens, counts or bytes.
SEEN_AS: dict[str, type[Exception]] = {
    "the_batch_as_key": KeyError,
    "the_largest_graph_for_what_fits_none": ValueError,
}


def _claim(module: ModuleType, test: str) -> Callable[[], object]:
    """The test as a call without arguments; of a parametrised one, all of its cases."""
    function = getattr(module, test)
    cases = [mark.args for mark in getattr(function, "pytestmark", []) if mark.args]
    if not cases:
        return function
    ((name, values),) = cases
    return lambda: [function(**{name: value}) for value in values]
