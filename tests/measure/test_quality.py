"""measure/quality.py and the gate of quantised arms: what is let through and what is stopped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from mini_engine.cuda.model import Model  # noqa: E402
from mini_engine.measure import bench, gate  # noqa: E402
from mini_engine.measure.bench import must_move_bytes  # noqa: E402
from mini_engine.measure.our_variants import OursEager, quantized  # noqa: E402
from mini_engine.measure.quality import LIMITS, Quality, quality_of  # noqa: E402
from mini_engine.measure.variants import VARIANTS  # noqa: E402
from mini_engine.predict.capacity import kv_bytes_per_token, weight_bytes  # noqa: E402
from tests.support.gate_helpers import setup_of  # noqa: E402

QUANTS = list(LIMITS)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("quant", QUANTS)
def test_the_shipped_checkpoint_is_as_good_as_rounding_lets_it_be(quant: str) -> None:
    found = quality_of(quant)
    print(found)
    assert found.passed, found.reason
    assert found.kl > LIMITS[quant][0] / 100  # it was really quantised
    assert not quality_of(quant).reason


def test_int4_at_the_limits_of_int8_would_be_stopped_in_words() -> None:
    as_int8 = replace(quality_of("int4"), quant="int8")
    assert not as_int8.passed
    assert as_int8.reason.startswith("quality of int8: KL 0.")
    assert "allowed 0.002; perplexity" in as_int8.reason
    assert not Quality("int4", 1, kl=0.1, perplexity=15.0, plain_perplexity=10.0).passed


def test_the_gate_passes_right_kernels_and_stops_wrong_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its truth is the quantised weights in float32, so what it stops is not the format: the arm
    passes, and the same weights with the scales of one matrix half as large again do not."""
    quant = "int4"
    monkeypatch.setattr(gate, "POSITIONS", 32)
    setup = setup_of(dtype=torch.bfloat16, hidden_size=64)
    judge = bench.gate_of(setup)
    variant = VARIANTS[f"graph-5-{quant}"].make(setup)
    variant.prepare()
    verdict = bench._verdict(quant, setup, judge, variant)
    assert verdict["passed"], verdict["reason"]
    assert verdict["quality"]["quant"] == quant
    packed = quantized(setup, quant).model.weights
    first, *others = packed.layers
    assert not isinstance(first.down, torch.Tensor)
    wrong = replace(first, down=replace(first.down, scales=first.down.scales * 1.5))
    spoilt = Model(replace(packed, layers=(wrong, *others)), setup.model.cache)
    stopped = bench._verdict(quant, setup, judge, OursEager(replace(setup, model=spoilt)))
    assert not stopped["passed"]
    assert stopped["reason"].startswith("gate: ")


def test_an_arm_that_the_gate_passes_is_stopped_by_its_formats_quality(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(LIMITS, "int8", (1e-6, 1.0))
    monkeypatch.setattr(gate, "POSITIONS", 8)
    setup = setup_of(dtype=torch.bfloat16)
    variant = OursEager(quantized(setup, "int8"))
    verdict = bench._verdict("int8", setup, bench.gate_of(setup), variant)
    assert not verdict["passed"]
    assert verdict["reason"].startswith("quality of int8")


@pytest.mark.parametrize("quant", QUANTS)
def test_an_arm_is_held_against_the_bytes_of_its_own_weights(quant: str) -> None:
    setup = setup_of(dtype=torch.bfloat16)
    config = setup.model.config
    ops = VARIANTS[f"graph-5-{quant}"].make(setup).ops()
    plain = VARIANTS["graph-5"].make(setup).ops()
    saved = weight_bytes(config) - weight_bytes(config, quant)
    assert sum(op.bytes for op in plain) - sum(op.bytes for op in ops) == pytest.approx(saved)
    assert [op.bytes for op in plain if op.kind == "attention"] == [
        op.bytes for op in ops if op.kind == "attention"
    ]
    cached = 2 * 40 * kv_bytes_per_token(config)
    assert must_move_bytes(config, 2, 40, quant) == weight_bytes(config, quant) + cached
