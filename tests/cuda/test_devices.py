"""A GPU that is absent, too old or too small gets one clear line, and the nearest thing that works.

No GPU is needed: what PyTorch would say about one is made up, and the emulator stands in its place.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from mini_engine.cli import main
from mini_engine.engine.generation import SHIPPED
from mini_engine.model.config import ModelConfig, named_shape
from mini_engine.step.storage import stored_as

torch = pytest.importorskip("torch")

from mini_engine.bench.variants import VARIANTS  # noqa: E402
from mini_engine.cuda.generate import nearest_backend  # noqa: E402
from mini_engine.cuda.graphs import backend as backend_room  # noqa: E402
from mini_engine.cuda.graphs import emulator  # noqa: E402
from mini_engine.cuda.graphs.backend import GraphBackend, graphs_for  # noqa: E402
from mini_engine.cuda.weights import no_room  # noqa: E402

ROOT = Path(__file__).parent.parent.parent
REAL = backend_room._backend_of


class PretendGpu:
    """`torch.cuda` as it would be with another GPU, as far as decisions go: nothing runs on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def __call__(
        self,
        name: str,
        capability: tuple[int, int],
        free: int = 80 << 30,
        built: str = "sm_75 sm_90",
    ) -> GraphBackend:
        """The backend of this GPU: the emulator in its place, with so many bytes free."""
        answers: dict[str, object] = {
            "is_available": True,
            "get_device_name": name,
            "get_device_capability": capability,
            "get_arch_list": built.split(),
            "is_bf16_supported": capability >= (8, 0),
            "mem_get_info": (free, free),
            "memory_reserved": 0,
            "memory_allocated": 0,
            "current_device": 0,
        }
        for question, answer in answers.items():
            self._patch.setattr(torch.cuda, question, lambda *_, said=answer, **__: said)
        emulated = replace(graphs_for("cpu"), emulated=False, mem_get_info=lambda: (free, free))
        self.stands_in(emulated)
        return emulated

    def stands_in(self, backend: GraphBackend) -> None:
        """`backend` is what `graphs_for("cuda")` gives from here on."""

        def given(device: torch.device, cuda: ModuleType) -> GraphBackend:
            return backend if cuda is torch.cuda else REAL(device, cuda)

        self._patch.setattr(backend_room, "_backend_of", given)


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> PretendGpu:
    return PretendGpu(monkeypatch)


T4, A100 = ("Tesla T4", (7, 5)), ("NVIDIA A100", (8, 0))
WORDS = ["generate", "--backend", "cuda", "--prompt", "Return the", "--max-new-tokens", "8"]


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """What a command said on standard error, which must be one line."""
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    return said


def generated(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert main([*WORDS, "--json", *more]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


@pytest.fixture(scope="module")
def written() -> list[int]:
    """The tokens that the simulator writes for WORDS."""
    done = subprocess.run(
        [sys.executable, "-m", "mini_engine", "generate", *WORDS[3:], "--json"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    tokens: list[int] = json.loads(done.stdout)["prompts"][0]["tokens"]
    return tokens


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_generate_says_so_and_writes_on_the_cpu(
    written: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    told = generated(capsys)
    assert told["prompts"][0]["tokens"] == written
    [note] = told["notes"]
    assert note == ("PyTorch finds no CUDA GPU here: running on the CPU, with emulated graphs")
    assert main(WORDS) == 0
    assert one_line(capsys) == note + "\n"


def test_a_gpu_older_than_this_pytorch_is_named_and_the_cpu_does_it(
    written: list[int], pretend: PretendGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend("GeForce GTX 1080", (6, 1), built="sm_75 sm_80 sm_90a compute_120")
    told = generated(capsys)
    assert told["prompts"][0]["tokens"] == written
    assert "GeForce GTX 1080 is sm_61, and this PyTorch needs sm_75 or newer" in told["notes"][0]
    assert "running on the CPU" in told["notes"][0]


def test_a_gpu_without_bf16_writes_in_float32_from_graphs(
    written: list[int], pretend: PretendGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(*T4)
    told = generated(capsys)
    assert told["prompts"][0]["tokens"] == written
    assert told["report"]["graphs"] > 0
    assert told["notes"] == [
        "Tesla T4 (sm_75) has no bf16, which came with sm_80: running in float32, which takes "
        "twice the bytes",
        "Tesla T4 is sm_75, and Triton needs sm_80: the plain model runs",
    ]
    assert told["kernels_per_layer"] == 0


def test_weights_that_do_not_fit_are_told_in_bytes(
    pretend: PretendGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    backend, large = pretend(*A100, free=8_000_000_000), named_shape("qwen3-4b")
    assert no_room(large, backend, "bf16") == (
        f"qwen3-4b needs {stored_as(large).held:,} bytes for its weights (bf16) and the GPU has "
        "8,000,000,000 free: take a smaller shape"
    )
    assert no_room(named_shape("qwen3-1.7b"), backend, "bf16") is None
    pretend(*A100, free=1_000_000)
    assert main(WORDS) == 2
    said = one_line(capsys)
    assert said.startswith("mini_engine generate: tiny-qwen3 needs ")
    assert "the GPU has 1,000,000 free" in said


def test_a_cache_that_does_not_fit_is_made_smaller_and_told(
    written: list[int], pretend: PretendGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    config = ModelConfig.from_folder(SHIPPED)
    weights, block = stored_as(config).held, 16 * stored_as(config).kv_bytes_per_token
    pretend(*A100, free=int((weights + 2 * block) / 0.9) + 10)
    told = generated(capsys, "--prompt", "Return the")  # one after the other
    assert [len(row["tokens"]) for row in told["prompts"]] == 2 * [len(written)]
    [note] = told["notes"]
    assert note.startswith("KV cache of 1 blocks of 16 tokens, 2 were wanted")
    assert f"{weights:,} of them go to the weights" in note
    assert main([*WORDS[:-1], "90"]) == 2  # more tokens than the cache can take
    assert "the cache has 1 beside the null block" in capsys.readouterr().err
    pretend(*A100, free=int((weights + block) / 0.9))
    assert main(WORDS) == 2
    assert "no room for a cache" in one_line(capsys)


# -- the commands that measure


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", ["bench", "calibrate"])
def test_measuring_without_a_gpu_says_that_it_emulates(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nearest_backend(Console(stderr=True).print).emulated
    assert (
        one_line(capsys)
        == "PyTorch finds no CUDA GPU here: running on the CPU, with emulated graphs\n"
    )
    assert main([command, "--device", "cuda"]) == 2
    assert "PyTorch finds no CUDA GPU here; use cpu" in one_line(capsys)


def test_programmatic_launch_is_for_gpus_that_have_it(pretend: PretendGpu) -> None:
    on_cuda = {"device": torch.device("cuda")}
    old = replace(pretend(*A100), **on_cuda)
    for name, kind in VARIANTS.items():
        reason = kind.why_not(old)
        if name.startswith("graph-5-pdl"):
            assert reason == "sm_80 has no programmatic dependent launch: it came with sm_90"
        elif name.startswith(("graph-", "ours-")):
            assert reason is None
    new = replace(pretend("NVIDIA H200", (9, 0)), **on_cuda)
    assert VARIANTS["graph-5-pdl"].why_not(new) is None


def test_without_triton_the_other_variants_are_still_there() -> None:
    program = (
        "import sys; sys.modules['triton'] = None\n"
        "from mini_engine.bench.variants import VARIANTS\n"
        "from mini_engine.cuda.graphs.backend import graphs_for\n"
        "for name in ('ours-graph', 'graph-9', 'graph-5', 'graph-5-pdl'):\n"
        "    print(VARIANTS[name].why_not(graphs_for('cpu')))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    first, *others = done.stdout.splitlines()
    assert first == "None", done.stderr
    reason = "the kernels are written in Triton, which is not installed: pip install triton"
    assert others == [reason] * 3


def test_a_shape_too_large_for_the_benchmark_is_told_variant_by_variant_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulator, "mem_get_info", lambda: (4_000_000_000, 4_000_000_000))
    out = tmp_path / "bench.json"
    words = ["bench", "--device", "cpu", "--shape", "qwen3-1.7b,tiny", "--arms", "ours-eager"]
    words += ["--batch", "1", "--rounds", "2", "--steps", "2", "--context", "40", "-o", str(out)]
    assert main(words) == 0
    large, tiny = json.loads(out.read_text())["figures"]["rows"]
    assert large["status"] == "not run"
    assert large["reason"].endswith("4,000,000,000 free: take a smaller shape")
    assert large["reason"].startswith("qwen3-1.7b needs 10,")
    assert tiny["status"] == "measured"
