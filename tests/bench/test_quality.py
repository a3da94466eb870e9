"""bench/quality.py and the gate of arms in few bits: what is let through and what is stopped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from mini_engine.bench import bench, gate  # noqa: E402
from mini_engine.bench.bench import must_move_bytes  # noqa: E402
from mini_engine.bench.few_bits import FEW_BITS, KV8, in_format  # noqa: E402
from mini_engine.bench.our_variants import OursEager  # noqa: E402
from mini_engine.bench.quality import LIMITS, Quality, quality_of  # noqa: E402
from mini_engine.bench.variants import VARIANTS  # noqa: E402
from mini_engine.cuda.model import Model  # noqa: E402
from mini_engine.step.capacity import kv_bytes_per_token, weight_bytes  # noqa: E402
from tests.support.gate_helpers import setup_of  # noqa: E402

QUANTS = [name for name in FEW_BITS if name != KV8]


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("few_bits", FEW_BITS)
def test_the_shipped_checkpoint_is_as_good_as_rounding_lets_it_be(few_bits: str) -> None:
    found = quality_of(few_bits)
    print(found)
    assert found.passed, found.reason
    assert found.kl > LIMITS[few_bits][0] / 100  # it was really quantised
    assert not quality_of(few_bits).reason


def test_int4_at_the_limits_of_int8_would_be_stopped_in_words() -> None:
    as_int8 = replace(quality_of("int4"), few_bits="int8")
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
    assert verdict["quality"]["few_bits"] == quant
    packed = in_format(setup, quant).model.weights
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
    variant = OursEager(in_format(setup, "int8"))
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


def test_an_arm_over_a_cache_in_fp8_is_judged_over_such_a_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Against a cache in bf16 its rounding alone would stop it. Half the scales of one layer are
    another cache, and are stopped over their own."""
    monkeypatch.setattr(gate, "POSITIONS", 256)
    setup = setup_of(dtype=torch.bfloat16, hidden_size=64)
    judge = bench.gate_of(setup)
    variant = VARIANTS[f"graph-5-{KV8}"].make(setup)
    variant.prepare()
    verdict = bench._verdict(KV8, setup, judge, variant)
    assert verdict["passed"], verdict["reason"]
    assert not judge.judge(variant).passed
    eight = in_format(setup, KV8).model
    first, *others = eight.cache.scales
    halved = replace(eight.cache, scales=(first / 2, *others))
    spoilt = OursEager(replace(setup, model=Model(eight.weights, halved)))
    assert not bench._verdict(KV8, setup, judge, spoilt)["passed"]


def test_an_arm_over_a_cache_in_fp8_reads_half_of_its_bytes() -> None:
    setup = setup_of(dtype=torch.bfloat16)
    config = setup.model.config
    ops, plain = (VARIANTS[name].make(setup).ops() for name in (f"graph-5-{KV8}", "graph-5"))
    saved = 2 * 40 * kv_bytes_per_token(config) / 2
    assert must_move_bytes(config, 2, 40) - must_move_bytes(config, 2, 40, KV8) == saved
    assert sum(op.bytes for op in plain) - sum(op.bytes for op in ops) >= saved
