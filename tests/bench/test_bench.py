"""The benchmark's variants decode the same; what they launch, and the clocks that time them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")


from mini_engine.bench import gate  # noqa: E402
from mini_engine.bench.decode_setup import Variant  # noqa: E402
from mini_engine.bench.op_record import OpRecorder  # noqa: E402
from mini_engine.bench.variants import VARIANTS, OursCompiled, OursEager  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.step.kernels import StepShape, step_ops  # noqa: E402
from tests.support.gate_helpers import setup_of  # noqa: E402
from tests.support.torch_helpers import DEVICES, FAMILIES, TOLERANCE  # noqa: E402

HERE = [name for name, kind in VARIANTS.items() if kind.why_not(graphs_for("cpu")) is None]


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


# ---------------------------------------------------------------- variants

# With PDL, and other kernels. torch.compile takes minutes: `test_bench_command.py` has its arms.
GPU_ONLY = [name for name in VARIANTS if name not in HERE and "compile" not in name]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", HERE)
def test_every_variant_decodes_what_the_plain_model_decodes(
    name: str, family: str, device: str
) -> None:
    assert_decodes_what_the_plain_model_decodes(name, family, device)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
@pytest.mark.parametrize("name", GPU_ONLY)
def test_so_does_every_variant_that_only_a_gpu_runs(name: str) -> None:
    if reason := VARIANTS[name].why_not(graphs_for("cuda")):
        pytest.skip(reason)
    assert_decodes_what_the_plain_model_decodes(name, "qwen3", "cuda")


def assert_decodes_what_the_plain_model_decodes(name: str, family: str, device: str) -> None:
    setup = setup_of(family, device=device)
    plain = OursEager(setup)
    variant = VARIANTS[name].make(setup)
    variant.prepare()
    for context in (setup.context, 33, setup.context):  # it can be placed again and again
        wanted, tokens = gate_walk(plain, context, 8)
        logits, sampled = gate_walk(variant, context, 8)
        assert tokens.tolist() == sampled.tolist()
        assert wanted.abs().max() > 0.5  # not a comparison of zeros
        torch.testing.assert_close(logits, wanted, atol=TOLERANCE, rtol=0)
    variant.release()


def gate_walk(variant: Variant, context: int, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    first = torch.arange(3, 5, dtype=torch.int32)
    return gate.walk(variant, first, steps, context=context)


def test_a_step_can_be_traced_by_torch_compile() -> None:
    """Its own tracing, without the code generator that needs a C++ compiler or a GPU."""
    setup = setup_of()
    plain, variant = OursEager(setup), OursCompiled(setup, backend="aot_eager")
    variant.prepare()
    wanted, tokens = gate_walk(plain, 40, 4)
    logits, sampled = gate_walk(variant, 40, 4)
    assert tokens.tolist() == sampled.tolist()
    torch.testing.assert_close(logits, wanted, atol=TOLERANCE, rtol=0)
    variant.release()


def test_a_fed_token_replaces_the_sampled_one() -> None:
    setup = setup_of()
    forced = torch.randint(200, (6, 2), dtype=torch.int32)
    walks = []
    for name in ("ours-eager", "ours-graph", "hf-eager"):
        variant = VARIANTS[name].make(setup)
        variant.prepare()
        walks.append(gate.walk(variant, setup.first_tokens, 6, forced)[0])
        free = gate.walk(variant, setup.first_tokens, 6)[0]
        assert not torch.allclose(walks[-1][1:], free[1:], atol=TOLERANCE)
    for walk in walks[1:]:
        torch.testing.assert_close(walk, walks[0], atol=TOLERANCE, rtol=0)


# ---------------------------------------------------------------- op lists


def test_recorded_ops_of_a_head_are_those_of_the_op_list() -> None:
    setup = setup_of("qwen3", torch.bfloat16)
    recorded = OursEager(setup).ops()
    listed = step_ops(setup.model.config, StepShape.decode(2, 40), "hf56")
    head, wanted = ([op for op in ops if op.kind == "product"][-1] for ops in (recorded, listed))
    assert head.flops == wanted.flops
    assert head.bytes == pytest.approx(wanted.bytes, rel=0.2)  # logits are of another type


def test_a_lookup_is_charged_for_its_rows_and_not_for_the_table() -> None:
    table, rows = torch.zeros(1000, 8), torch.tensor([3, 5])
    recorder = OpRecorder()
    with recorder:
        picked = table.index_select(0, rows)
        table.index_copy_(0, rows, picked)
        picked.view(-1).add_(1)
        torch.empty(7)
    assert [(op.name, op.bytes) for op in recorder.ops] == [
        ("index_select", 2 * 64 + 16),
        ("index_copy_", 64 + 16 + 64),
        ("add_", 64 + 64),  # a view launches nothing, and neither does empty
    ]
