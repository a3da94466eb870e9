"""gpt-fast: a folder of scripts. `generate` calls back with each token of a decode step.

Read in meta-pytorch/gpt-fast, 6ecad9b: `generate`, `decode_n_tokens`, `decode_one_token`,
`_load_model` (generate.py), `Transformer.from_name` (model.py). All rows of a batch get the same
prompt. It knows the shapes of its own table, Llama's and like them, and finds one by the name of
the folder; scripts/convert_hf_checkpoint.py makes the model.pth that it reads.

Its loop does not wait for the device, so the callback does: it reads the token, as who shows it
would. The prompt's token is not called back; the gap before the first one that is does not count.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mini_engine.bench.others.child import KINDS, Job, Lap


def start(job: Job) -> GptFastSession:
    """Load the model. Graphs are captured by torch.compile, in the first laps."""
    checkpoint = Path(job.model) / "model.pth"
    if not job.where or not (Path(job.where) / "generate.py").is_file():
        install = KINDS["gpt-fast"].install
        raise ValueError(f"no generate.py in {job.where or 'no folder'}: {install}")
    if not checkpoint.is_file():
        convert = f"scripts/convert_hf_checkpoint.py --checkpoint_dir {Path(job.model).name}"
        raise ValueError(f"no model.pth: make it with gpt-fast's {convert}")
    sys.path.insert(0, job.where)
    torch: Any = importlib.import_module("torch")
    gpt_fast: Any = importlib.import_module("generate")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = gpt_fast._load_model(checkpoint, device, torch.bfloat16, False)
    if not job.eager:
        gpt_fast.decode_one_token = torch.compile(
            gpt_fast.decode_one_token, mode="reduce-overhead", fullgraph=True
        )
    return GptFastSession(job, torch, gpt_fast, model, device)


class GptFastSession:
    """A call of `generate`, with a callback that reads the clock."""

    def __init__(self, job: Job, torch: Any, gpt_fast: Any, model: Any, device: str) -> None:
        self.job, self.torch, self.gpt_fast = job, torch, gpt_fast
        self.model, self.device = model, device
        done = subprocess.run(
            ["git", "-C", job.where, "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        )
        self.version = done.stdout.strip() or "unknown"

    def lap(self, prompts: Sequence[Sequence[int]]) -> Lap:
        times: list[float] = []

        def arrived(token: Any) -> None:
            token.tolist()  # waits for the device
            times.append(time.perf_counter())

        prompt = self.torch.tensor(prompts[0], dtype=self.torch.int, device=self.device)
        rows, _ = self.gpt_fast.generate(
            self.model, prompt, self.job.tokens, batch_size=len(prompts), interactive=False,
            draft_model=None, callback=arrived, temperature=0.0,
        )  # fmt: skip
        return Lap([times], [rows[0, len(prompts[0]) :].tolist()])
