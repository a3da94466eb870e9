"""The measuring steps of labs 11 and 12b: what they say without a GPU, and their stopwatch on the
emulator, whose times mean nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

import torch

from labs.lab11_triton_fusion import measure as lab11
from labs.lab12b_flash_decoding import measure as lab12b
from labs.measuring import kernel_timing
from labs.measuring.kernel_timing import YOURS, Case, time_calls
from mini_engine.cuda.graphs.backend import graphs_for
from mini_engine.model.config import named_shape
from mini_engine.step.cards import load_spec
from mini_engine.step.kernels import OpCost, StepShape, step_parts

CPU, QWEN = torch.device("cpu"), named_shape("qwen3-0.6b")
H200 = load_spec("h200", engine=kernel_timing.ENGINE)
SMALL = replace(
    QWEN, hidden_size=48, intermediate_size=40, num_heads=4, num_kv_heads=2, head_dim=16
)


def small_cases() -> list[Case]:
    """Every case of both labs at a small shape, less what only Triton can run."""

    def no_triton(case: Case) -> Case:
        keep = {YOURS, "PyTorch, unpaged", "PyTorch, 2 ops", "PyTorch, op by op"}
        calls = case.calls
        return replace(
            case, calls=lambda on: {name: c for name, c in calls(on).items() if name in keep}
        )

    cases = [*lab11.cases(SMALL, (5, 1)), lab12b.decode_case(SMALL, 3, 32, 12)]
    return [no_triton(case) for case in cases]


@pytest.mark.parametrize("case", small_cases(), ids=lambda case: case.name)
def test_every_contestant_is_captured_and_timed(case: Case) -> None:
    timed = time_calls(graphs_for("cpu"), case, rounds=2)
    assert next(iter(timed)) == YOURS
    assert len(timed) == 2
    assert all(us.median > 0 and us.samples == 10 for us in timed.values())


@pytest.mark.parametrize("case", small_cases(), ids=lambda case: case.name)
def test_contestants_compute_the_same(case: Case) -> None:
    """Up to the roundings to bf16 between the ops of PyTorch."""
    results = []
    for name in case.calls(CPU):
        torch.manual_seed(0)
        results.append(case.calls(CPU)[name]())
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2**-5, atol=2**-5)


def test_the_bytes_of_a_case_are_those_of_the_op_list() -> None:
    ops = {op.name: op for op in step_parts(QWEN, StepShape.decode(1, 4096), "fused9").layer}
    by_name = {case.name: case for case in lab11.cases(QWEN, (1,))}
    assert by_name["add_rms_norm, 1 token"].bytes == ops["add_rms_norm"].bytes
    assert by_name["silu_mul, 1 token"].bytes == ops["silu_mul"].bytes
    assert by_name["qk_norm_rope_kv_write, 1 token"].bytes == ops["qk_norm_rope_kv_write"].bytes
    one = lab12b.decode_case(QWEN, 1, 4096, 1)  # a single split: one part a head, written and read
    assert one.bytes == ops["attention"].bytes + 2 * 16 * (128 + 2) * 4


def test_a_prediction_is_bytes_a_floor_and_a_gap_for_each_kernel() -> None:
    case = Case("x", (OpCost("a", 43_000_000, 0), OpCost("b", 4, 0)), lambda _: {})
    around = 2 * (H200.kernel_floor_us + H200.graph_gap_us)
    wanted = 43_000_000 / (H200.copy_bandwidth_gb_s * 1e3) + around
    assert case.predicted_us(H200) == pytest.approx(wanted, rel=1e-6)
    product = Case("x", (OpCost("a", 43_000_000, 0, kind="product"),), lambda _: {})
    read_us = 43_000_000 / (H200.product_gb_s * 1e3)
    assert product.predicted_us(H200) == pytest.approx(read_us + around / 2)


@pytest.mark.parametrize(("number", "cases"), [("11", lab11.for_spec), ("12b", lab12b.cases)])
def test_without_a_gpu_it_says_so_and_what_measures(
    number: str,
    cases: Callable[..., list[Case]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(kernel_timing, "why_not", lambda: "there is no GPU")
    assert kernel_timing.main(number, cases, ["--predict", "3.5"]) == 0
    said = capsys.readouterr().out
    assert "Not yet measured: no run on a GPU has been kept, and here: there is no GPU." in said
    assert "Predicted for h200" in said
    assert f"./lab measure {number} --predict 3.5" in said
    assert "Your prediction 3.5 µs, the spec" in said
    assert said.count("not yet\n") == len(cases(H200))


def test_with_a_gpu_it_measures_and_judges(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole way, with the emulator in the GPU's place."""
    monkeypatch.setattr(kernel_timing, "why_not", lambda: None)
    monkeypatch.setattr(kernel_timing, "graphs_for", lambda _device: graphs_for("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "no real GPU")
    cases = small_cases()[-1:]
    assert kernel_timing.main("12b", lambda _spec: cases, ["--predict", "3.5"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("no real GPU, its own copy: ")
    assert f"{cases[0].name}: yours" in said
    assert f"{cases[0].name}: PyTorch, unpaged" in said
    assert "Your prediction 3.5 µs, measured" in said
    assert "ot yet" not in said
