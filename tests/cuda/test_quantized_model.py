"""A model of quantised weights: the fused step is the plain one's, and text comes out of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from mini_engine.cuda import weights as weights_file  # noqa: E402
from mini_engine.cuda.attention import DecodeAttention  # noqa: E402
from mini_engine.cuda.fused import FusedModel  # noqa: E402
from mini_engine.cuda.generate import limits_that_fit  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.inputs import StepInputs  # noqa: E402
from mini_engine.cuda.model import KVCache, Model  # noqa: E402
from mini_engine.cuda.quantized_matrix import dequantized  # noqa: E402
from mini_engine.cuda.weights import MATRICES, Weights, load_weights, loaded_bytes, no_room  # noqa: E402
from mini_engine.engine.generation import SHIPPED, limits_for  # noqa: E402
from mini_engine.model.config import ModelConfig, named_shape  # noqa: E402
from tests.cuda.test_fused import random_step  # noqa: E402
from tests.support.checkpoint_helpers import num_parameters  # noqa: E402
from tests.support.torch_helpers import DEVICES, inference  # noqa: E402

pytestmark = pytest.mark.usefixtures(inference.__name__)

TINY = ModelConfig.from_folder(SHIPPED)
QUANTS = ("int8", "int4")
each_quant = pytest.mark.parametrize("quant", QUANTS)


def tiny(quant: str | None, device: str = "cpu") -> Weights:
    return load_weights(TINY, SHIPPED, torch.device(device), torch.float32, quant)


@each_quant
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("per_layer", [5, 9])
def test_a_fused_step_of_quantised_weights_equals_the_plain_one(
    quant: str, per_layer: int, device: str
) -> None:
    """On either side of each limit: one GEMV, several, and a library's product."""
    weights = tiny(quant, device)
    for rows in (1, 4, 5, 16, 17):
        inputs, cache = random_step(weights, rows)
        copied = KVCache(*(tuple(t.clone() for t in ts) for ts in (cache.keys, cache.values)))
        other = StepInputs(**{name: t.clone() for name, t in vars(inputs).items()})
        attention = DecodeAttention(8, 4)
        plain = Model(weights, cache)
        fused = FusedModel(weights, copied, kernels_per_layer=per_layer)  # type: ignore[arg-type]
        got, ours = fused.head(fused.body(other, attention), other)
        want, tokens = plain.head(plain.body(inputs, attention), inputs)
        live = inputs.context_lens > 0
        # float32 sums in another order, over four layers, of logits up to about 20
        torch.testing.assert_close(got[live], want[live], atol=2e-3, rtol=0)
        assert torch.equal(ours[live], tokens[live])


@each_quant
def test_quantised_weights_compute_what_their_dequantised_ones_do(quant: str) -> None:
    weights = tiny(quant)
    dense = replace(
        weights,
        layers=tuple(
            replace(layer, **{name: dequantized(getattr(layer, name)) for name in MATRICES})
            for layer in weights.layers
        ),
    )
    inputs, cache = random_step(weights, 3)
    attention, logits = DecodeAttention(8, 4), []
    for one in (weights, dense):
        copied = KVCache(*(tuple(t.clone() for t in ts) for ts in (cache.keys, cache.values)))
        model = Model(one, copied)
        logits.append(model.head(model.body(inputs, attention), inputs)[0])
    assert torch.equal(*logits)


def test_only_the_matrices_of_layers_are_quantised_and_each_can_be_quantised_later() -> None:
    at_load, later = tiny("int4"), tiny(None).as_quantized("int4")
    assert at_load.quantized
    assert not tiny(None).quantized
    assert at_load.lm_head is at_load.embed
    assert at_load.embed.dtype == torch.float32
    for one, other in zip(at_load.layers, later.layers, strict=True):
        for name in MATRICES:
            assert torch.equal(dequantized(getattr(one, name)), dequantized(getattr(other, name)))


def test_one_plain_matrix_is_held_beside_what_is_quantised(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    true = weights_file.quantize

    def watched(matrix: torch.Tensor, bits: int) -> object:
        held.append(matrix.nbytes)
        return true(matrix, bits)

    monkeypatch.setattr(weights_file, "quantize", watched)
    tiny("int8")
    assert len(held) == 4 * TINY.num_layers
    assert max(held) == 2 * TINY.intermediate_size * TINY.hidden_size * 4


# ---------------------------------------------------------------- memory


def test_a_quantised_model_needs_its_own_bytes_and_one_plain_matrix() -> None:
    shape = named_shape("qwen3-8b")
    needed = {quant: loaded_bytes(shape, "bf16", quant) for quant in (None, *QUANTS)}
    assert needed[None] == 2 * num_parameters(shape)
    assert needed["int4"] < needed["int8"] < needed[None]
    largest = 2 * shape.intermediate_size * shape.hidden_size
    codes = shape.num_layers * (shape.hidden_size * (2 * shape.q_size + 2 * shape.kv_size))
    codes += shape.num_layers * 3 * shape.intermediate_size * shape.hidden_size
    scales = needed["int4"] - codes // 2 - 2 * (num_parameters(shape) - codes) - 2 * largest
    assert scales == codes // 128 * 2.5


def test_what_fits_only_quantised_is_let_in_only_quantised(monkeypatch: pytest.MonkeyPatch) -> None:
    shape, backend = named_shape("qwen3-8b"), graphs_for("cpu")
    free = 12 * 10**9
    for place in ("mini_engine.cuda.weights", "mini_engine.cuda.generate"):
        monkeypatch.setattr(f"{place}.free_bytes", lambda _: free)
    assert no_room(shape, backend, "bf16", quant="int4") is None
    assert "qwen3-8b needs" in (no_room(shape, backend, "bf16") or "")
    limits, said = limits_for(shape, 1), list[str]()
    fitting = limits_that_fit(shape, limits, backend, torch.bfloat16, said.append, quant="int4")
    assert 1 < fitting.num_blocks <= limits.num_blocks
    with pytest.raises(ValueError, match=r"qwen3-8b needs .* \(int8\)"):
        monkeypatch.setattr("mini_engine.cuda.weights.free_bytes", lambda _: 4 * 10**9)
        limits_that_fit(shape, limits, backend, torch.bfloat16, said.append, quant="int8")
