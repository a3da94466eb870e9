"""`generate --backend cuda` writes one text: plain or with the kernels, in any mode, with any
number of steps a replay."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from mini_engine.cli import main  # noqa: E402
from mini_engine.cuda import generate as generate_file  # noqa: E402
from mini_engine.cuda.generate import Generation, generate, why_plain  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.dispatch.modes import CUDAGraphMode  # noqa: E402
from mini_engine.engine.generation import SHIPPED  # noqa: E402
from tests.support.torch_helpers import TINY  # noqa: E402

ROOT = Path(__file__).parent.parent.parent
PROMPTS = ["Return the", "def __init__(self", "If the file"]


def written(mode: str, **options: Any) -> Generation:
    return generate(str(SHIPPED), PROMPTS, mode, max_new_tokens=9, tell=lambda _: None, **options)


@pytest.fixture(scope="module")
def plain() -> tuple[str, ...]:
    return written("NONE", kernels=0).texts


@pytest.mark.parametrize("mode", [mode.name for mode in CUDAGraphMode])
def test_the_kernels_write_what_the_plain_model_writes_in_every_mode(
    mode: str, plain: tuple[str, ...]
) -> None:
    """Three requests, so that rungs are padded; on a CPU the references of the kernels."""
    steps = 4 if CUDAGraphMode[mode].decode_mode() is CUDAGraphMode.FULL else 1
    done = written(mode, steps_per_replay=steps)
    assert done.texts == plain
    assert (done.mode, done.steps_per_replay) == (mode, steps)
    assert bool(done.report.graphs) == (mode != "NONE")


def test_the_command_tells_what_ran(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", "--backend", "cuda", "--prompt", "Return the", "--max-new-tokens", "3"]
    more = ["--mode", "FULL_DECODE_ONLY", "--steps-per-replay", "2"]
    assert main([*words, *more, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["kernels_per_layer"], told["pdl"], told["steps_per_replay"]) == (5, False, 2)
    assert main([*words, "--mode", "NONE", "--kernels", "0"]) == 0
    assert "3 tokens on cpu, plain layers, 0 graphs captured" in capsys.readouterr().out


@pytest.mark.parametrize(("mode", "sizes"), [("FULL", [3]), ("NONE", None)])
def test_where_no_decode_rung_has_a_graph_of_several_steps_a_replay_runs_one(
    mode: str, sizes: list[int] | None
) -> None:
    said = list[str]()
    done = generate(
        str(SHIPPED), ["a", "b"], mode, max_new_tokens=4, capture_sizes=sizes, steps_per_replay=2,
        tell=said.append,
    )  # fmt: skip
    assert done.steps_per_replay == 1
    assert said[-1] == "no decode rung has a graph of 2 steps: each replay runs one"


def test_without_triton_the_plain_model_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate_file, "find_spec", lambda _: None)
    reason = why_plain(replace(TINY, head_dim=32), graphs_for("cpu"), 5)
    assert reason == "the kernels are written in Triton, which is not installed: pip install triton"
