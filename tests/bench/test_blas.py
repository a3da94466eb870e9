"""The library of matrix products: preferred for a whole run, or while one graph is captured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mini_engine.bench import blas  # noqa: E402
from mini_engine.bench.decode_setup import build_setup  # noqa: E402
from mini_engine.bench.variants import BLAS_ARMS, VARIANTS  # noqa: E402
from mini_engine.cli import bench as bench_command  # noqa: E402
from mini_engine.cli import build_parser, main  # noqa: E402
from mini_engine.cli.bench_file import config_of  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.graphs.capture import GraphRunner  # noqa: E402
from mini_engine.cuda.weights import random_weights  # noqa: E402
from tests.support.torch_helpers import CPU  # noqa: E402


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """PyTorch's preference as a build with CUDA keeps it; the CPU's build refuses cuBLASLt."""
    state = SimpleNamespace(name="Cublas")
    names = {"cublas": "Cublas", "cublaslt": "Cublaslt"}

    def stand_in(backend: str | None = None) -> SimpleNamespace:
        if backend is not None:
            state.name = names[backend]
        return SimpleNamespace(name=state.name)

    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", stand_in)
    return state


def tiny_setup() -> Any:
    weights = random_weights(config_of("tiny"), CPU, torch.bfloat16, seed=0)
    return build_setup(graphs_for("cpu"), weights, 1, 40, 64)


@pytest.mark.parametrize("name", BLAS_ARMS)
def test_a_graph_is_captured_under_its_own_library_and_replayed_under_any(
    name: str, library: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    capture = GraphRunner.capture

    def watched(self: GraphRunner) -> Any:
        seen.append(blas.preferred())
        return capture(self)

    monkeypatch.setattr(GraphRunner, "capture", watched)
    variant = VARIANTS[name].make(tiny_setup())
    assert not seen  # nothing is captured before `prepare`
    with torch.no_grad():
        variant.prepare()
    assert seen == [name.removeprefix("ours-graph-")]
    assert library.name == "Cublas"
    variant.rewind()
    variant.step()
    assert seen == [name.removeprefix("ours-graph-")]  # a replay captures nothing again
    variant.release()


def test_a_capture_that_fails_leaves_the_preference_as_it_was(library: SimpleNamespace) -> None:
    def fails_inside() -> None:
        with blas.under("cublaslt"):
            assert library.name == "Cublaslt"
            raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        fails_inside()
    assert library.name == "Cublas"


@pytest.mark.usefixtures("library")
def test_the_whole_run_prefers_what_the_line_says() -> None:
    on_a_gpu: Any = SimpleNamespace(emulated=False)
    blas.prefer(on_a_gpu, "cublaslt")
    assert blas.preferred() == "cublaslt"


def test_on_a_cpu_the_knob_is_refused_and_its_arms_say_why(capsys: Any) -> None:
    assert main(["bench", "--device", "cpu", "--blas", "cublaslt"]) == 2
    assert "--blas cublaslt: cuBLAS and cuBLASLt multiply on a GPU" in capsys.readouterr().err
    for name in BLAS_ARMS:
        assert "on a GPU only" in str(VARIANTS[name].why_not(graphs_for("cpu")))


def test_the_command_offers_the_libraries_there_are_and_its_arms_where_asked_for() -> None:
    assert bench_command.LIBRARIES == blas.LIBRARIES
    args = build_parser(["bench"]).parse_args(["bench"])
    bench_command._fill_in(args, graphs_for("cpu"))
    assert not set(BLAS_ARMS) & set(args.arms)
