"""The simulator held against steps that others have recorded. A band is as wide as its reason says;
`trace --recorded NAME` prints how far off each figure is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from statistics import median

import pytest

from mini_engine.model.config import SHAPES, named_shape
from mini_engine.sim.predict import play
from mini_engine.sim.recorded import (
    Anatomy,
    Recording,
    anatomy,
    anatomy_of,
    kind_of,
    load_recording,
    recording_names,
)
from mini_engine.sim.trace import TraceEvent
from mini_engine.step.cards import load_spec
from mini_engine.step.explain import Explained, explain
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.run import WAYS
from mini_engine.step.step_model import StepModel

STUDY = [name for name in recording_names() if name.endswith(("h100-graph", "h100-eager"))]
UNDER_NSYS = [step for batch in (1, 4, 8, 16) for step in (load_recording(n, batch) for n in STUDY)
              if step.like and step.like["shape"] in SHAPES]  # fmt: skip
EXPERTS = [step for step in UNDER_NSYS if "a3b" in step.name]
DENSE = [step for step in UNDER_NSYS if step not in EXPERTS]
EAGER = [step for step in DENSE if step.name.endswith("eager")]
GRAPHS = [step for step in UNDER_NSYS if step.name.endswith("graph")]
MI300X = load_recording("sglang-qwen3-8b-graph")
TABLES = [load_recording(f"{engine}-qwen3-8b-h100-kernels") for engine in ("sglang", "vllm")]


def named(steps: list[Recording]) -> pytest.MarkDecorator:
    ids = [f"{step.name}-{(step.like or {})['batch']}" for step in steps]
    return pytest.mark.parametrize("step", steps, ids=ids)


@cache
def timeline(name: str, batch: int) -> tuple[TraceEvent, ...]:
    like = load_recording(name, batch).like or {}
    spec = load_spec(like["spec"], None, like["engine"])
    shape, config = StepShape.decode(like["batch"], like["context"]), named_shape(like["shape"])
    if config.experts:  # a batch was one prompt, copied, and all its tokens went the same way
        shape = replace(shape, touched=config.experts.active)
    ops = step_ops(config, shape, spec.ops)
    return play(ops, spec, WAYS[like["mode"][0]], like["batch"])[0]


def predicted(step: Recording) -> Anatomy:
    events = timeline(step.name, (step.like or {})["batch"])
    return anatomy_of(events, whole=not step.events)


def small_us(events: Sequence[TraceEvent]) -> float:
    """From the start of a kernel that moves few bytes to the start of the next: the median."""
    small = ("norm", "RoPE", "KV write", "activation", "elementwise")
    kernels = [e for e in events if e.category in ("kernel", "node")]
    kernels.sort(key=lambda e: e.start_us)
    return median(b.start_us - a.start_us for a, b in pairwise(kernels) if kind_of(a.name) in small)


def explained(step: Recording) -> Explained:
    like = step.like or {}
    spec = load_spec(like["spec"], None, like["engine"])
    itl_us, model = anatomy(step).gpu_us, named_shape(like["shape"])
    about = {"batch": like["batch"], "context": like["context"], "mode": like["mode"][0]}
    return explain(StepModel(model, spec), itl_us=itl_us, **about)


def share(step: Anatomy, kind: str) -> float:
    return step.kinds[kind].us / step.busy_us


@named(UNDER_NSYS)
def test_kernels_run_for_as_long_as_predicted_within_a_fifth(step: Recording) -> None:
    """A profiler counts a kernel from its first block on, and so most of what the model calls a gap
    between two nodes: an empty kernel, too, runs for a microsecond."""
    ours, gap_us = predicted(step), load_spec("h100").graph_gap_us
    assert 0.8 < (ours.busy_us + ours.kernels * gap_us) / anatomy(step).busy_us < 1.2


@named(GRAPHS)
def test_a_step_in_a_graph_takes_what_is_predicted_within_three_tenths(step: Recording) -> None:
    """Too long, and more so with the batch: of the engine's work for each request, which the fit
    has from servers, SGLang's own benchmark has little. Steps of experts come out a tenth too short
    instead: their grouped products read more slowly than others."""
    found, ours = anatomy(step), predicted(step)
    busy_us = ours.busy_us + ours.kernels * load_spec("h100").graph_gap_us
    assert (0.85 if step in EXPERTS else 0.9) < ours.gpu_us / found.gpu_us < 1.3
    assert busy_us / ours.gpu_us > 0.6 < found.busy_us / found.gpu_us


def test_one_host_explains_the_eager_steps_of_three_models_and_four_batches() -> None:
    """Half as slow as the usual server. If the CPU's time went with anything but the number of
    kernels, each model would need a host of its own."""
    factors = [explained(step).host_factor or 0.0 for step in EAGER]
    assert 0.4 < min(factors) <= max(factors) < 0.65
    assert max(factors) < 1.3 * min(factors)


@named(EAGER)
def test_explain_finds_from_the_itl_alone_how_long_the_gpu_waited(step: Recording) -> None:
    """A profiler saw it: to within an eighth of the step, and rather less than it was. What a
    graph takes is what explain compares with, and that is predicted too long."""
    found, told = anatomy(step), explained(step)
    waited = 1 - found.busy_us / found.gpu_us
    assert waited - 0.125 < told.cpu_us / told.itl_us < waited + 0.01


@named([MI300X, *TABLES])
def test_a_layer_has_the_kernels_that_were_counted(step: Recording) -> None:
    """Products with their reductions as cuBLAS splits them, on NVIDIA's cards. The sum of
    attention's parts is predicted always, and 30 keys need none; tables list no small norms."""
    found, ours = anatomy(step), predicted(step)
    for kind in ("KV write", "activation", "attention" if step is MI300X else "product"):
        if kind in found.kinds:
            counts = [round(part.kinds[kind].count / 36) for part in (found, ours)]
            assert counts[0] == counts[1], kind


def test_a_small_kernel_takes_half_of_what_an_amd_card_takes_from_start_to_start() -> None:
    """4.8 µs on an MI300X. Floor and gap are all that such a kernel is, and they are fitted to
    steps on NVIDIA's cards."""
    found, ours = small_us(MI300X.events), small_us(timeline(MI300X.name, 32))
    assert found == pytest.approx(4.8, abs=0.05)
    assert ours == pytest.approx(found / 2, rel=0.2)


@pytest.mark.parametrize(("name", "us"), [("runner-1", 2.7), ("runner-2", 2.3), ("speculative", 3)])
def test_a_small_kernel_of_vllm_is_predicted_too_long_in_a_graph(name: str, us: float) -> None:
    """On an H200, from start to start. The fit has servers' steps and no kernels: what it does not
    know of a step it spreads over them."""
    spec = load_spec("h200", engine="vllm")
    events = load_recording(f"vllm-gemma-4-{name}").events
    found = small_us([e for e in events if e.category == "node"])
    assert found == pytest.approx(us, abs=0.05)
    assert 1.05 < (spec.kernel_floor_us + spec.graph_gap_us) / found < 1.4


def test_attention_has_the_predicted_share_where_there_are_keys_to_read() -> None:
    """33,000 keys of 32 requests. The whole step is predicted some 40% too short: this library's
    products reach 2.6 TB/s, where a copy reaches 4.7."""
    assert share(predicted(MI300X), "attention") == pytest.approx(
        share(anatomy(MI300X), "attention"), abs=0.05
    )


@named(TABLES)
def test_attention_of_few_keys_is_predicted_too_short(step: Recording) -> None:
    """FlashAttention 3 takes 7 to 9 µs a layer for 30 keys, and the predicted kernel its floor of
    3: two to four of a hundred parts of the step are missed."""
    missed = share(anatomy(step), "attention") - share(predicted(step), "attention")
    assert 0 < missed < 0.05
