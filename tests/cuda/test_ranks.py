"""Tensor parallel on real processes: two ranks on gloo write the text of one, in every mode, and
say in one line what goes wrong. On GPUs the same commands run NCCL."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mini_engine.cuda.generate import generate  # noqa: E402
from mini_engine.cuda.ranks import Ranks  # noqa: E402
from mini_engine.cuda.weights import load_weights  # noqa: E402
from mini_engine.engine.generation import SHIPPED  # noqa: E402
from mini_engine.model.config import ModelConfig  # noqa: E402
from tests.support.checkpoint_helpers import MIXTURE, TINY, random_tensors, write  # noqa: E402
from tests.support.torch_helpers import random_folder  # noqa: E402
from tests.support.warm_python import warm_python  # noqa: E402

ROOT = Path(__file__).parent.parent.parent
PROMPTS = ["Return the", "def __init__(self", "If the file"]
SLOW = os.environ.get("HYPOTHESIS_PROFILE") == "slow"
MODES = ["NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE"]
COMMAND = ("generate", "--backend", "cuda", "--prompt", "Return the", "--max-new-tokens")
# Every mode in one start of the processes, which is what takes long.
PROGRAM = """
import json, sys
from mini_engine.cuda.generate import generate
prompts, modes = json.loads(sys.argv[2]), json.loads(sys.argv[3])
for mode in modes:
    steps = 3 if mode == "FULL" else 1
    done = generate(sys.argv[1], prompts, mode, max_new_tokens=7, steps_per_replay=steps, kernels=0)
    print("found " + json.dumps([done.texts, done.report.graphs]), flush=True)
"""
ON_CPUS = {"CUDA_VISIBLE_DEVICES": ""}  # also where there is a GPU: they share it badly
TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no two NVIDIA GPUs")


def torchrun(
    ranks: int, *words: str, where: Mapping[str, str] = ON_CPUS
) -> subprocess.CompletedProcess[str]:
    command = [warm_python(), "-m", "torch.distributed.run", "--standalone",
               f"--nproc-per-node={ranks}", *words]  # fmt: skip
    known = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **where}
    return subprocess.run(
        command, cwd=ROOT, env=known, capture_output=True, text=True, timeout=300, check=False
    )


def as_program(*words: str) -> tuple[str, ...]:
    """PROGRAM and its words, as torchrun starts it without a file."""
    return "--no-python", warm_python(), "-c", PROGRAM, *words


def mixture(folder: Path) -> Path:
    """A folder of a tiny mixture of experts, with the words of the shipped checkpoint."""
    config = json.loads((SHIPPED / "config.json").read_text("utf-8")) | {
        "model_type": "qwen3_moe", "num_experts": 6, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "norm_topk_prob": True, "num_hidden_layers": 2,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (SHIPPED / name).is_file():
            (folder / name).write_bytes((SHIPPED / name).read_bytes())
    return write(folder, random_tensors(ModelConfig.from_folder(folder), seed=4))


def found(done: subprocess.CompletedProcess[str]) -> list[tuple[list[str], int]]:
    """The texts and the number of graphs of each mode, as the first rank alone prints them."""
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    return [(texts, graphs) for texts, graphs in
            (json.loads(line.removeprefix("found ")) for line in lines)]  # fmt: skip


@pytest.mark.parametrize("kind", ["dense", pytest.param("experts", marks=pytest.mark.slow)])
def test_two_ranks_write_the_text_of_one_in_every_mode(kind: str, tmp_path: Path) -> None:
    folder = SHIPPED if kind == "dense" else mixture(tmp_path)
    words = str(folder), json.dumps(PROMPTS)
    modes = MODES if SLOW else MODES[::3]
    written = found(torchrun(2, *as_program(*words, json.dumps(modes))))
    alone = list(generate(folder, PROMPTS, "NONE", max_new_tokens=7, kernels=0).texts)
    assert [texts for texts, _ in written] == [alone] * len(modes)
    assert [graphs > 0 for _, graphs in written] == [mode != "NONE" for mode in modes]


@pytest.mark.gpu
@TWO_GPUS
def test_two_gpus_sum_inside_their_graphs() -> None:
    """A FULL rung is one graph there, and its text is that of the ranks' eager steps."""
    words = as_program(str(SHIPPED), json.dumps(PROMPTS), json.dumps(["NONE", "FULL_DECODE_ONLY"]))
    (eager, none), (captured, graphs) = found(torchrun(2, *words, where={}))
    assert captured == eager
    assert none == 0
    assert 0 < graphs <= 51  # one a rung


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("mini_engine generate")]


def starter(folder: Path, body: str) -> str:
    """A program that does something on one rank before it is the command line."""
    path = folder / "start.py"
    path.write_text(
        f"import os, sys, threading, time\nrank = int(os.environ['RANK'])\n{body}\n"
        "from mini_engine.cli import main\nsys.exit(main(sys.argv[1:]))\n",
        "utf-8",
    )
    return str(path)


def test_ranks_that_were_asked_for_different_things_name_what_differs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = {"mode": "'FULL'", "max_new_tokens": "6"}
    monkeypatch.setattr(Ranks, "told", lambda self, mine: [mine, other])
    with pytest.raises(ValueError, match="rank 1: max_new_tokens 6, unlike on rank 0"):
        Ranks(0, 2, False, None).check_alike({"mode": "FULL", "max_new_tokens": 5})


@pytest.mark.slow
def test_a_rank_that_dies_is_missed_in_one_line_and_nobody_hangs(tmp_path: Path) -> None:
    """Rank 1 goes at its fortieth sum, in the middle of the text."""
    body = (
        "from mini_engine.cuda.ranks import Ranks\nsums, plain = [], Ranks.sum\n"
        "def sum(self, x):\n"
        "    sums.append(1)\n"
        "    os._exit(7) if rank == 1 and len(sums) == 40 else None\n"
        "    return plain(self, x)\n"
        "Ranks.sum = sum"
    )
    done = torchrun(2, starter(tmp_path, body), *COMMAND, "40", "--mode", "NONE")
    assert done.returncode != 0
    [line] = said(done)
    assert line.startswith("mini_engine generate: rank 0 of 2 lost another rank (")


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize("config", [TINY, MIXTURE], ids=["dense", "experts"])
def test_the_parts_of_all_ranks_are_the_whole(config: Any, count: int, tmp_path: Path) -> None:
    """Laid side by side, each part once: a KV head that several ranks share is on each of them."""
    experts = config.experts and replace(config.experts, width=16)
    config = replace(config, num_heads=8, num_kv_heads=4, intermediate_size=32, vocab_size=40,
                     experts=experts)  # fmt: skip
    folder, cpu = random_folder(config, tmp_path), torch.device("cpu")
    whole = load_weights(config, folder, cpu, torch.float32)
    parts = [
        load_weights(config, folder, cpu, torch.float32, Ranks(rank, count, False, None))
        for rank in range(count)
    ]
    mine, all_of_it = [part.layers[0] for part in parts], whole.layers[0]
    heads = 8 // count * 8
    q = torch.cat([layer.qkv[:heads] for layer in mine])
    torch.testing.assert_close(q, all_of_it.qkv[:64])
    keys = [layer.qkv[heads : heads + (len(layer.qkv) - heads) // 2] for layer in mine]
    torch.testing.assert_close(torch.cat(keys[:: max(1, count // 4)]), all_of_it.qkv[64:96])
    torch.testing.assert_close(torch.cat([layer.o for layer in mine], dim=1), all_of_it.o)
    torch.testing.assert_close(torch.cat([layer.down for layer in mine], dim=1), all_of_it.down)
    assert sum(layer.gate_up.numel() for layer in mine) == all_of_it.gate_up.numel()
    torch.testing.assert_close(torch.cat([part.lm_head for part in parts]), whole.lm_head)
