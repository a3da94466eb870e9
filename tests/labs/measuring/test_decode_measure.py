"""The measuring steps of labs 15 and 15b: what they say without a GPU, and their stopwatch on the
emulator, whose times mean nothing."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

import torch
from rich.console import Console

from labs.lab15_gemv import measure as lab15
from labs.lab15b_cuda_graph_decode import measure as lab15b
from labs.measuring import ledger
from labs.support.interpreter import install_bf16_guard
from mini_engine.cuda.graphs.backend import graphs_for
from mini_engine.cuda.kernels.launch import INTERPRETED
from mini_engine.model.config import named_shape
from mini_engine.step.cards import load_spec
from mini_engine.step.kernels import StepShape, step_parts

if INTERPRETED:
    install_bf16_guard()

CPU, QWEN = torch.device("cpu"), named_shape("qwen3-0.6b")
SMALL = replace(
    QWEN,
    hidden_size=32,
    intermediate_size=48,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    vocab_size=61,
    max_position_embeddings=128,
    eos_token_ids=(),
)


def test_the_products_move_the_bytes_of_the_op_list() -> None:
    ops = {op.name: op.bytes for op in step_parts(QWEN, StepShape.decode(1, 512), "fused5").layer}
    names = ["norm_qkv_proj", "o_proj_add", "norm_gate_up_silu_mul", "down_proj_add"]
    assert [case.bytes for case in lab15.cases(QWEN)] == [ops[name] for name in names]


@pytest.mark.skipif(INTERPRETED, reason="the interpreter is on in this process")
def test_the_machine_code_of_a_kernel_is_told_and_so_is_one_that_does_not_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(case: object) -> list[str]:
        if case.name != "o_add_m1":
            raise ValueError(f"unsupported [op] in {case.name}")
        return inner(case)

    inner = lab15._compiled
    monkeypatch.setattr(lab15, "_compiled", refused)
    lab15.show_machine_code(Console(file=(out := io.StringIO()), width=80))
    lines = [line.split() for line in out.getvalue().splitlines()]
    (o_add,) = [line for line in lines if line[:1] == ["o_add"] and len(line) > 2]
    assert o_add[1] == "512"
    assert o_add[4:] == ["0", "8.2", "of", "8.2", "0"]  # nothing spilled, all above, none too early
    assert "down_add does not compile: unsupported [op] in down_add_m1" in out.getvalue()


@pytest.fixture
def small_lab14(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LABS_HOME", str(tmp_path))
    monkeypatch.setattr(lab15b, "named_shape", lambda _: SMALL)
    for name, value in {"STEPS": 16, "ROUNDS": 2, "CONTEXT": 24}.items():
        monkeypatch.setattr(lab15b, name, value)


@pytest.mark.usefixtures("small_lab14")
def test_a_prediction_shares_one_graph_among_its_steps() -> None:
    specs = {engine: load_spec("h200", engine=engine) for engine in (lab15b.PLAIN, lab15b.OURS)}
    predicted = lab15b.predicted_ms(SMALL, specs)
    ops = {name: count for name, (count, _) in predicted.items()}
    ms = {name: time for name, (_, time) in predicted.items()}
    assert ops["eager"] == ops["one graph"] == ops["8 steps a graph"]
    assert ops["5 kernels a layer"] == 5 + 3
    assert ms["eager"] > ms["one graph"] > ms["8 steps a graph"] > ms["5 kernels a layer"]
    spec = specs[lab15b.PLAIN]
    once = (spec.graph_launch_us + spec.sync_us) / 1e3  # a replay: its launch and its read-back
    assert 0 < ms["one graph"] - ms["8 steps a graph"] <= once


@pytest.mark.usefixtures("small_lab14")
def test_with_a_gpu_lab_14_measures_judges_and_closes_the_line_of_the_ledger(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole way, with the emulator in the GPU's place."""
    monkeypatch.setattr(lab15b, "why_not", lambda: None)
    monkeypatch.setattr(lab15b, "graphs_for", lambda _device: graphs_for("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "no real GPU")
    assert lab15b.main(["--predict", "3.5"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("no real GPU; predicted for h200")
    assert "ot yet" not in said
    (entry,) = ledger.entries()
    assert entry.measured
    assert entry.on == "no real GPU"


@pytest.mark.usefixtures("small_lab14")
def test_a_gpu_without_bf16_times_the_plain_ways_in_fp16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab15b, "no_kernels", lambda _: "Tesla T4 (sm_75) has no bf16")
    timed, same = lab15b.measured(graphs_for("cpu"), SMALL, torch.float16)
    assert list(timed) == [way.name for way in lab15b.WAYS if not way.fused]
    assert same == dict.fromkeys(timed, 16)
    shown = Console(file=(out := io.StringIO()), width=120)
    specs = {engine: load_spec("t4", engine=engine) for engine in (lab15b.PLAIN, lab15b.OURS)}
    shown.print(lab15b.table_of(lab15b.predicted_ms(SMALL, specs), timed, same))
    assert out.getvalue().count("not yet") == 2
