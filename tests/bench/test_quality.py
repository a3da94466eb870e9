"""What few bits cost in quality, and the gate of arms in few bits: what passes and what is stopped.

The gate asks whether a kernel computes what its weights say. Whether these weights still say what
the model said is another question, and random weights cannot answer it: here the shipped checkpoint
reads a fixed text, before and after. In float32 on the CPU: the kernels have no part in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from torch import Tensor  # noqa: E402

from mini_engine.bench import bench, gate  # noqa: E402
from mini_engine.bench.decode_setup import FORMATS, KV8, in_format  # noqa: E402
from mini_engine.bench.variants import VARIANTS, OursEager  # noqa: E402
from mini_engine.cuda.attention import HostAttention  # noqa: E402
from mini_engine.cuda.inputs import StepInputs  # noqa: E402
from mini_engine.cuda.model import KVCache, Model, measured_scales  # noqa: E402
from mini_engine.cuda.weights import load_weights  # noqa: E402
from mini_engine.engine.generation import SHIPPED  # noqa: E402
from mini_engine.model.config import ModelConfig  # noqa: E402
from mini_engine.model.tokenizer import Tokenizer  # noqa: E402
from mini_engine.step.storage import stored_as  # noqa: E402
from tests.support.gate_helpers import setup_of  # noqa: E402

# Frozen before the first measurement on a GPU, from the arithmetic of rounding and not from a run.
# A code is off by at most half a scale, uniformly: 1/254 of a row's largest number in int8, and
# 1/30 of a group's range in int4. In numbers of standard deviation (the largest of a row of 160 is
# about 3 of them, of a group of 128 the range about 5) that is an rms error of 0.7% of each weight
# in int8 and of 10% in int4. The error of a sum is as large a share of it, and KL is about half of
# the squared error of the logits, which are a few units large and go through four layers, eight
# sums in a row: 0.5 · 8 · (3 · 0.007)² = 0.002 nats, and 0.5 · 8 · (3 · 0.1)² = 0.36.
# Of a key or a value in e4m3 rounding takes at most 1/16, and in the rms 1/16 · √(1/3) = 3.6% where
# a binade begins, in K and in V of four layers: 0.5 · 8 · (3 · 0.036)² = 0.047. (With the rms over
# a whole binade, 2.6%, it is 0.024, which is what the text then took: expected, so no limit.)
# Perplexity may grow as much as KL says: exp(0.002), exp(0.36), exp(0.047).
LIMITS = {  # KL in nats, perplexity as a factor
    "int8": (0.002, 1.002),
    "int4": (0.36, 1.43),
    "kv8": (0.047, 1.048),
}

TEXT = """Return a list of the names of all files in the given directory. If the path is not a
directory, raise an error. The optional argument is a function that is called for each name and
returns true if the name is to be kept. The order of the list is not defined.

Read up to n bytes from the stream and return them as a bytes object. If n is not given or is
negative, read until the end of the file. The result may be shorter than n if the end is reached.

Create a new object of this class from a string. The string must have the form of a number with an
optional sign. A value error is raised if it cannot be converted.
"""


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@cache
def quality_of(few_bits: str) -> tuple[float, float]:
    """(mean KL in nats of each token, perplexity over that of the model as it is)."""
    config = ModelConfig.from_folder(SHIPPED)
    ids = Tokenizer(SHIPPED, config.eos_token_ids).encode(TEXT)
    plain, ours = (log_probabilities(config, kind, ids) for kind in (None, few_bits))
    following = torch.tensor(ids[1:])[:, None]
    losses = [-one[:-1].gather(1, following).mean() for one in (plain, ours)]
    kl = (plain.exp() * (plain - ours)).sum(-1).mean()
    return float(kl), float((losses[1] - losses[0]).exp())


def log_probabilities(config: ModelConfig, few_bits: str | None, ids: list[int]) -> Tensor:
    """Of every next token after each of the text, (T, V) float64."""
    device, count, block = torch.device("cpu"), len(ids), 16
    blocks = -(-count // block)
    quant = None if few_bits == KV8 else few_bits
    weights = load_weights(config, SHIPPED, device, torch.float32, quant)
    scales = measured_scales(weights) if few_bits == KV8 else ()
    cache = KVCache.allocate(config, 1 + blocks, block, device, torch.float32, scales)
    model = Model(weights, cache)

    def row(*numbers: int) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32)

    inputs = StepInputs(
        input_ids=row(*ids),
        positions=row(*range(count)),
        slot_mapping=row(*range(block, block + count)),
        query_lens=row(count),
        context_lens=row(count),
        last_rows=row(*range(count)),
        block_table=row(*range(1, 1 + blocks))[None],
    )
    logits, _ = model.head(model.body(inputs, HostAttention((count,), (count,), block)), inputs)
    return logits.double().log_softmax(-1)


@pytest.mark.parametrize("few_bits", FORMATS)
def test_the_shipped_checkpoint_is_as_good_as_rounding_lets_it_be(few_bits: str) -> None:
    (kl, perplexity), (most, factor) = quality_of(few_bits), LIMITS[few_bits]
    assert most / 100 < kl <= most  # it was really quantised
    assert perplexity <= factor


def judged(name: str, setup: bench.DecodeSetup, variant: bench.Variant) -> gate.Verdict:
    return bench.gate_of(setup, few_bits=name).judge(variant)


def test_the_gate_passes_right_kernels_and_stops_wrong_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its truth is the quantised weights in float32, so what it stops is not the format: the arm
    passes, and the same weights with the scales of one matrix half as large again do not."""
    quant = "int4"
    monkeypatch.setattr(gate, "POSITIONS", 32)
    setup = setup_of(dtype=torch.bfloat16, hidden_size=64)
    variant = VARIANTS[f"graph-5-{quant}"].make(setup)
    variant.prepare()
    verdict = judged(quant, setup, variant)
    assert verdict.passed, verdict.reason
    packed = in_format(setup, quant).model.weights
    first, *others = packed.layers
    assert not isinstance(first.down, torch.Tensor)
    wrong = replace(first, down=replace(first.down, scales=first.down.scales * 1.5))
    spoilt = Model(replace(packed, layers=(wrong, *others)), setup.model.cache)
    assert not judged(quant, setup, OursEager(replace(setup, model=spoilt))).passed


@pytest.mark.parametrize("quant", [name for name in FORMATS if name != KV8])
def test_an_arm_is_held_against_the_bytes_of_its_own_weights(quant: str) -> None:
    setup = setup_of(dtype=torch.bfloat16)
    config = setup.model.config
    ops = VARIANTS[f"graph-5-{quant}"].make(setup).ops()
    plain = VARIANTS["graph-5"].make(setup).ops()
    saved = stored_as(config).held - stored_as(config, quant).held
    assert sum(op.bytes for op in plain) - sum(op.bytes for op in ops) == pytest.approx(saved)
    assert [op.bytes for op in plain if op.kind == "attention"] == [
        op.bytes for op in ops if op.kind == "attention"
    ]


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
    verdict = judged(KV8, setup, variant)
    assert verdict.passed, verdict.reason
    assert not judge.judge(variant).passed
    eight = in_format(setup, KV8).model
    first, *others = eight.cache.scales
    halved = replace(eight.cache, scales=(first / 2, *others))
    spoilt = OursEager(replace(setup, model=Model(eight.weights, halved)))
    assert not judged(KV8, setup, spoilt).passed
