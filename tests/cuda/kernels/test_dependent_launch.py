"""Programmatic dependent launch changes no bit: at the true widths of models, and when the kernel
before is late.

On a GPU of sm_90 or newer. On a CPU a small model shows that the checks see every op and every
input, and the compiler takes the late kernel. `tests/cuda/kernels/test_ahead_of_time.py` reads
from machine code that every kernel waits before it reads.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from typing import Literal

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton has no wheel for this platform")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter is on in this process", allow_module_level=True)

from torch import Tensor  # noqa: E402

from mini_engine.bench.decode_setup import DecodeSetup, build_setup  # noqa: E402
from mini_engine.cuda.fused import FusedModel  # noqa: E402
from mini_engine.cuda.graphs.backend import GraphBackend, graphs_for  # noqa: E402
from mini_engine.cuda.weights import Weights, random_weights  # noqa: E402
from mini_engine.model.config import ModelConfig, named_shape  # noqa: E402
from tests.support.kernel_cases import compile_for  # noqa: E402
from tests.support.late_producer import (  # noqa: E402
    BLOCK,
    LateInputs,
    dependent_copy,
    late_copy,
    late_copy_kernel,
)
from tests.support.machine_code import RELEASE  # noqa: E402
from tests.support.torch_helpers import FAMILIES  # noqa: E402

pytestmark = pytest.mark.usefixtures("inference")

MODELS = ("qwen3-0.6b", "qwen3-1.7b", "llama-3.2-1b")
BATCHES = (1, 2, 3, 4, 8, 16)
STEPS, CONTEXT = 6, 512
ON_META = True  # see tests/support/launch_record.py: what is launched here is compiled anyway


def without_dependent_launch() -> bool:
    return not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0)


def on_hopper(test: object) -> object:
    reason = "no NVIDIA GPU of sm_90 or newer"
    return pytest.mark.gpu(pytest.mark.skipif(without_dependent_launch(), reason=reason)(test))


def setup_of(weights: Weights, batch: int, context: int, device: str) -> DecodeSetup:
    """Every call makes the same cache and the same requests."""
    backend = replace(graphs_for(device), device=torch.device(device))
    return build_setup(backend, weights, batch, context, context + 2 * STEPS)


@cache
def weights_of(model: str) -> Weights:
    """Two layers of the true width."""
    config: ModelConfig = replace(named_shape(model), num_layers=2)
    return random_weights(config, torch.device("cuda"), torch.bfloat16, seed=0)


# ---------------------------------------------------------------- with and without it


def decoded(model: str, batch: int, per_layer: Literal[9, 5], *, pdl: bool) -> list[Tensor]:
    """Logits, tokens, keys and values of some steps in one graph: Python launches too slowly for
    kernels to overlap."""
    setup = setup_of(weights_of(model), batch, CONTEXT, "cuda")
    backend: GraphBackend = setup.backend
    fused = FusedModel(setup.model.weights, setup.model.cache, kernels_per_layer=per_layer, pdl=pdl)
    inputs, made = setup.inputs(), []

    def step() -> None:
        made.extend(fused.next_step(fused.body(inputs, setup.attention), inputs))

    step()  # compiles
    made.clear()
    setup.place(inputs, setup.first_tokens, setup.context)
    graph = backend.CUDAGraph()
    with backend.graph(graph, pool=backend.graph_pool_handle()):
        for _ in range(STEPS):
            step()
    graph.replay()
    backend.synchronize()
    return [*made, *setup.model.cache.keys, *setup.model.cache.values]


def assert_same_with_and_without(model: str, batch: int, per_layer: Literal[9, 5]) -> None:
    plain = decoded(model, batch, per_layer, pdl=False)
    early = decoded(model, batch, per_layer, pdl=True)
    assert plain[0].isfinite().all()
    for one, other in zip(plain, early, strict=True):
        assert torch.equal(one, other)


@on_hopper
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("model", MODELS)
def test_steps_of_five_kernels_a_layer_are_the_same_bits_with_and_without(
    model: str, batch: int
) -> None:
    assert_same_with_and_without(model, batch, 5)


@on_hopper
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("model", MODELS)
def test_steps_of_nine_are_too(model: str, batch: int) -> None:
    assert_same_with_and_without(model, batch, 9)


# ---------------------------------------------------------------- when the kernel before is late


def late_step(
    weights: Weights, batch: int, per_layer: Literal[9, 5], context: int, device: str
) -> list[tuple[str, str]]:
    """A step in which every input of every op comes late; which ones these were."""
    setup = setup_of(weights, batch, context, device)
    pdl = device == "cuda"
    fused = FusedModel(setup.model.weights, setup.model.cache, kernels_per_layer=per_layer, pdl=pdl)
    inputs = setup.inputs()
    late = LateInputs(fused, inputs, pdl)
    with late.between_ops():
        fused.next_step(fused.body(inputs, setup.attention), inputs)
    return late.tried


@on_hopper
@pytest.mark.parametrize("batch", [1, 4, 8])
@pytest.mark.parametrize("model", MODELS)
def test_every_kernel_of_five_waits_for_every_input_that_comes_late(model: str, batch: int) -> None:
    assert late_step(weights_of(model), batch, 5, CONTEXT, "cuda")


@on_hopper
@pytest.mark.parametrize("batch", [1, 8])
def test_every_kernel_of_nine_does_too(batch: int) -> None:
    assert late_step(weights_of("qwen3-0.6b"), batch, 9, CONTEXT, "cuda")


@on_hopper
def test_a_kernel_that_does_not_wait_is_caught() -> None:
    """Else nothing overlaps here, and the tests above prove nothing."""
    for waits in (True, False):
        right = torch.arange(10 * BLOCK, device="cuda", dtype=torch.int32)
        x, out = torch.full_like(right, -1), torch.empty_like(right)
        for _ in range(2):  # the first one compiles, which takes longer than any sleep
            x.fill_(-1)
            torch.cuda.synchronize()
            late_copy(x, right)
            dependent_copy(out, x, waits=waits)
            torch.cuda.synchronize()
        assert torch.equal(out, right) == waits


# ---------------------------------------------------------------- without a GPU


def small_weights() -> Weights:
    config = replace(FAMILIES["qwen3"], head_dim=32, num_layers=1)
    return random_weights(config, torch.device("cpu"), torch.float32, seed=3)


def test_every_op_is_tried_with_each_input_that_the_step_writes() -> None:
    """All but the length of the attention, which it may read early: a kernel without PDL stands
    between two steps."""
    tried = late_step(small_weights(), 2, 5, 9, "cpu")
    fused_attention = ["out", "counters", "qkv"]
    expected = [("norm_linear", name) for name in ("out", "x")]
    expected += [("rope_kv_write_attention", name) for name in fused_attention]
    expected += [("linear_add", name) for name in ("out", "x")]
    expected += [("norm_gate_up_silu_mul", name) for name in ("out", "x")]
    expected += [("linear_add", name) for name in ("out", "x")]
    assert [one for one in tried if one[0] in {op for op, _ in expected}] == expected
    assert ("pick_and_advance", "values") in tried
    assert ("norm_lm_head", "x") in tried


def test_an_op_that_depends_on_what_was_there_before_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a kernel that reads too early does."""
    monkeypatch.setattr("tests.support.late_producer.late_copy", lambda out, x: None)
    with pytest.raises(AssertionError, match="norm_linear: out differs when x comes late"):
        late_step(small_weights(), 2, 5, 9, "cpu")


def test_the_late_kernel_releases_then_sleeps_then_writes() -> None:
    made = compile_for(
        late_copy_kernel, {"out": "*bf16", "x": "*bf16"}, {"block": BLOCK}, capability=90,
        num_warps=4, scalars={"size": "i32", "sleep_ns": "i32"},
    )  # fmt: skip
    (release,), clocks = made.where(RELEASE), made.where("GLOBALTIMER")
    assert len(clocks) >= 2
    assert release < min(clocks)
    assert max(clocks) < min(made.where(r"\bSTG\b"))
