"""The plan "persistent": one op for all layers of a step of one token, five a layer for more.

On a CPU its reference stands in for the kernel, on a GPU it is the kernel. Its arithmetic, its
barriers and its machine code have tests of their own in tests/cuda/kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from mini_engine.cuda.attention import DecodeAttention  # noqa: E402
from mini_engine.cuda.fused import FusedModel  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.inputs import StepInputs  # noqa: E402
from mini_engine.cuda.kernels import persistent  # noqa: E402
from mini_engine.cuda.kernels.persistent import HELD_BYTES, TILE_BYTES, share  # noqa: E402
from mini_engine.cuda.model import KVCache, Model  # noqa: E402
from mini_engine.cuda.weights import random_weights  # noqa: E402
from tests.support.torch_helpers import DEVICES, FAMILIES  # noqa: E402

BLOCK_SIZE, BLOCKS = 4, 8


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def two_models(family: str, device: str, rows: int) -> tuple[Model, FusedModel, StepInputs]:
    """The plain model and ours on equal caches, and a step of `rows` requests."""
    config = replace(FAMILIES[family], head_dim=32, hidden_size=64)
    weights = random_weights(config, torch.device(device), torch.float32, seed=3)
    g = torch.Generator().manual_seed(rows)
    contexts = torch.randint(5, 29, (rows,), generator=g)
    table = 1 + torch.randperm(BLOCKS * rows, generator=g).view(rows, BLOCKS)
    positions = contexts - 1
    slots = table.gather(1, (positions // BLOCK_SIZE)[:, None])[:, 0] * BLOCK_SIZE
    slots += positions % BLOCK_SIZE
    ids = torch.randint(0, config.vocab_size, (rows,), generator=g)
    arrays = (ids, positions, slots, torch.ones(rows), contexts, torch.arange(rows), table)
    inputs = StepInputs(*[a.to(device=device, dtype=torch.int32) for a in arrays])
    shape = (BLOCKS * rows + 1, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
    layers = range(config.num_layers)
    old = [[torch.randn(shape, generator=g).to(device) for _ in layers] for _ in range(2)]
    caches = [KVCache(*(tuple(t.clone() for t in part) for part in old)) for _ in range(2)]
    ours = FusedModel(weights, caches[1], kernels_per_layer=5, plan="persistent")
    return Model(weights, caches[0]), ours, inputs


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("family", "rows"), [("qwen3", 1), ("qwen2", 1), ("llama", 1), ("qwen3", 3)]
)
def test_steps_that_feed_themselves_equal_the_plain_ones(
    family: str, rows: int, device: str
) -> None:
    plain, ours, inputs = two_models(family, device, rows)
    theirs = StepInputs(**{name: t.clone() for name, t in vars(inputs).items()})
    attention = DecodeAttention(BLOCKS, BLOCK_SIZE)
    for _ in range(3):
        logits, want = plain.next_step(plain.body(theirs, attention), theirs)
        got_logits, got = ours.next_step(ours.body(inputs, attention), inputs)
        # float32 sums in another order over a few layers of unit-sized values
        torch.testing.assert_close(got_logits, logits, atol=2e-4, rtol=0)
        assert torch.equal(got, want)
    for layer in range(plain.config.num_layers):
        for mine, wanted in (
            (ours.cache.keys, plain.cache.keys),
            (ours.cache.values, plain.cache.values),
        ):
            torch.testing.assert_close(mine[layer], wanted[layer], atol=2e-4, rtol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_a_graph_holds_one_launch_for_all_layers_and_finds_its_counters_again(device: str) -> None:
    """Embedding, layers, head, argmax. Replayed twice it makes two steps, as running it does."""
    plain, ours, inputs = two_models("qwen3", device, 1)
    attention, backend = DecodeAttention(BLOCKS, BLOCK_SIZE), graphs_for(device)
    theirs = StepInputs(**{name: t.clone() for name, t in vars(inputs).items()})
    first = StepInputs(**{name: t.clone() for name, t in vars(inputs).items()})
    ours.next_step(ours.body(first, attention), first)  # warm-up; the step itself comes again
    graph = backend.CUDAGraph()
    with backend.graph(graph):
        _, tokens = ours.next_step(ours.body(inputs, attention), inputs)
    if device == "cpu":
        assert sum(name.startswith("launch_bound") for name in graph.ops) == 3
    for _ in range(2):
        graph.replay()
        _, want = plain.next_step(plain.body(theirs, attention), theirs)
        assert torch.equal(tokens, want)
        assert not ours.one_counters.any()


def test_torch_may_trace_and_capture_the_op_and_what_does_not_fit_is_named() -> None:
    _, ours, inputs = two_models("qwen3", "cpu", 1)
    keys, values = list(ours.cache.keys), list(ours.cache.values)
    residual = torch.randn(1, ours.config.hidden_size)
    arguments = [
        residual, keys, values, ours.one_counters, ours.flat_weights, ours.table,
        inputs.block_table, inputs.context_lens, ours.cos, ours.sin, 1e-6,
    ]  # fmt: skip
    op = persistent.persistent_layers
    torch.library.opcheck(op, tuple(arguments), test_utils=("test_schema", "test_faketensor"))
    with pytest.raises(ValueError, match=r"residual is \(2, 64\), expected \(1, 64\)"):
        op(residual.repeat(2, 1), *arguments[1:])
    with pytest.raises(ValueError, match=r"18 weights, 1 keys and 2 values, expected 9 weights"):
        op(residual, keys[:1], *arguments[2:])
    with pytest.raises(ValueError, match=r"counters is \(65,\), expected \(66,\)"):
        op(residual, keys, values, ours.one_counters[:65], *arguments[4:])


@given(
    rows=st.integers(1, 10_000),
    width=st.sampled_from([64, 896, 1024, 2048, 4864, 8960]),
    programs=st.sampled_from([1, 3, 108, 132]),
    pairs=st.booleans(),
)
@settings(deadline=None, max_examples=settings.default.max_examples // 4)
def test_every_row_has_one_owner_and_what_is_held_fits(
    rows: int, width: int, programs: int, pairs: bool
) -> None:
    """As the kernel deals tiles: program p takes p, p + programs, ..., those that there are."""
    s = share(rows, width, programs, 2, pairs=pairs)
    tiles = [p + i * programs for p in range(programs) for i in range(s.held + s.more)]
    assert sorted(t for t in tiles if t * s.tile_rows < rows) == list(range(rows // s.tile_rows))
    assert rows % s.tile_rows == 0
    assert s.chunk * s.chunks >= width
    assert s.more % s.held == 0
    tile_bytes = s.tile_rows * width * 2 * (2 if pairs else 1)
    assert tile_bytes <= TILE_BYTES
    assert s.held * tile_bytes <= HELD_BYTES
