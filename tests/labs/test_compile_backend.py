"""The compiled model writes what the plain one does: fresh, from the cache, in piecewise graphs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from labs.lab13b_compile_backend import backend as backend_room  # noqa: E402
from labs.lab13b_compile_backend import measure  # noqa: E402
from labs.lab13b_compile_backend.backend import CompiledModel  # noqa: E402
from labs.lab13b_compile_backend.cache import Cache  # noqa: E402
from labs.lab13b_compile_backend.written import read  # noqa: E402
from mini_engine.cuda.attention import HostAttention  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.model import KVCache, Model  # noqa: E402
from mini_engine.cuda.runner import TorchRunner  # noqa: E402
from mini_engine.cuda.weights import Weights, load_weights, random_weights  # noqa: E402
from mini_engine.dispatch.dispatcher import GraphDispatcher  # noqa: E402
from mini_engine.engine.batch import Request, SchedulerLimits  # noqa: E402
from mini_engine.engine.engine import Engine  # noqa: E402
from mini_engine.engine.generation import SHIPPED  # noqa: E402
from mini_engine.model.config import ModelConfig  # noqa: E402
from tests.support.torch_helpers import CPU, LIMITS, batch_of, step, tiny_weights, warm_model  # noqa: E402


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def nothing(_: str) -> None:
    """No line is expected."""
    raise AssertionError(_)


def compiled(weights: Weights, folder: Path | None = None, **options: bool) -> CompiledModel:
    store = Cache(folder, nothing) if folder else None
    return CompiledModel(weights, warm_model(weights).cache, store=store, **options)


def same_step(model: CompiledModel, chunks: list[tuple[int, int]]) -> bool:
    """Whether logits and cache of a step are those of the plain model, bit for bit: eager pieces
    run the same ops on the same rows, and the op of the pass the same sums in the same order."""
    plain, batch = warm_model(model.weights), batch_of(chunks)
    attention = HostAttention(batch.query_lens, batch.context_lens, LIMITS.block_size)
    caches = [(*one.cache.keys, *one.cache.values) for one in (plain, model)]
    for warm, mine in zip(*caches, strict=True):
        mine.copy_(warm)
    sizes = batch.num_tokens, batch.num_reqs
    wanted, written = (step(one, batch, attention, *sizes)[0] for one in (plain, model))
    equal = [torch.equal(one, other) for one, other in zip(*caches, strict=True)]
    return torch.equal(wanted, written) and all(equal)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that a first start of the tiny model has filled."""
    folder = tmp_path_factory.mktemp("compiled")
    with torch.inference_mode():
        first = compiled(tiny_weights(), folder)
        assert same_step(first, [(3, 1), (0, 4)])
        assert same_step(first, [(5, 1)])
    assert [(s.tokens, s.from_cache, s.pieces, s.attentions) for s in first.starts] == [
        ("T", False, 3, 2),
        ("1", False, 3, 2),
    ]
    return folder


@pytest.fixture(scope="module")
def second(kept: Path) -> CompiledModel:
    return compiled(tiny_weights(), kept)


@contextmanager
def no_trace() -> Iterator[None]:
    """Dynamo and the cut, which comes after the pass, are not there."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("traced")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", refuse)
        patch.setattr(backend_room, "split", refuse)
        yield


# A quarter of the profile's examples: a batch has few kinds of shapes.
@settings(max_examples=settings.default.max_examples // 4)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)), min_size=1, max_size=4))
def test_a_second_start_traces_nothing_and_serves_every_number_of_tokens(
    second: CompiledModel, chunks: list[tuple[int, int]]
) -> None:
    with no_trace(), torch.inference_mode():
        assert same_step(second, chunks)
    for start in second.starts:
        assert (start.from_cache, start.matches, set(start.seconds)) == (True, 3, {"load"})
    assert len(second.starts) <= 2  # one token, or more


def test_other_weights_of_the_same_shapes_run_the_same_file(kept: Path) -> None:
    """Weights are inputs of a graph, so none are in the cache, and none can be the wrong ones."""
    weights = random_weights(tiny_weights().config, CPU, torch.float32, seed=9)
    with no_trace():
        assert same_step(compiled(weights, kept), [(2, 1), (0, 3)])


def test_a_model_that_asks_how_many_tokens_there_are_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = Model._mlp

    def asking(self: Model, x: torch.Tensor, *rest: object) -> torch.Tensor:
        return plain(self, x * 2 if len(x) > 3 else x, *rest)

    monkeypatch.setattr(Model, "_mlp", asking)
    with pytest.raises(ValueError, match="asks for its number of tokens"):
        same_step(compiled(tiny_weights()), [(0, 5)])


def test_the_trained_checkpoint_writes_the_same_text_through_piecewise_graphs() -> None:
    """Random prompts, rungs that pad; plain and eager against compiled pieces, captured."""
    config = ModelConfig.from_folder(SHIPPED)
    weights = load_weights(config, SHIPPED, CPU, torch.float32)
    limits = SchedulerLimits(
        max_num_seqs=4, max_num_batched_tokens=16, num_blocks=33, block_size=8, max_model_len=64
    )
    generator = torch.Generator().manual_seed(5)
    requests = [
        Request(str(i), torch.randint(3, 400, (n,), generator=generator).tolist(), 6)
        for i, n in enumerate((3, 11, 1, 20, 7))
    ]

    def texts(mode: str, model: type[Model]) -> tuple[dict[str, tuple[int, ...]], Model]:
        cache = KVCache.allocate(config, limits.num_blocks, limits.block_size, CPU, torch.float32)
        dispatcher = GraphDispatcher(mode, (3, 8, 16), limits.max_num_seqs)
        runner = TorchRunner(model(weights, cache), limits, dispatcher, graphs_for("cpu"))
        report = runner.capture()
        assert bool(report.graphs) == (mode != "NONE")
        done = Engine(runner, limits, dispatcher).run(requests)
        return {c.request_id: c.tokens for c in done}, runner.model

    wanted, _ = texts("NONE", Model)
    got, model = texts("PIECEWISE", CompiledModel)
    assert got == wanted
    assert isinstance(model, CompiledModel)
    (start,) = model.starts  # three rungs, one trace
    assert (start.matches, start.pieces, start.distinct) == (2 * config.num_layers - 1, 5, 3)


# ---------------------------------------------------------------- a graph as JSON


@pytest.mark.parametrize(
    "node",
    [
        ["call_function", "load", ["weights.pt"], {}],
        ["call_function", "os.system", ["true"], {}],
        ["call_method", "__class__", [], {}],
        ["get_attr", "weight", [], {}],
        ["run", "x", [], {}],
    ],
    ids=lambda node: node[1],
)
def test_a_file_that_names_anything_else_is_refused(node: list[object]) -> None:
    with pytest.raises(ValueError, match=str(node[1])):
        read([["placeholder", "x", [], {}], node])  # type: ignore[list-item]


# ---------------------------------------------------------------- the command


def test_the_measuring_step_starts_twice_and_traces_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert measure.main(["--tokens", "5"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    starts = [line[:3] for line in lines if line[:1] in (["first"], ["second"])]
    assert starts == [["first", "T", "no"], ["first", "1", "no"],
                      ["second", "T", "yes"], ["second", "1", "yes"]]  # fmt: skip
