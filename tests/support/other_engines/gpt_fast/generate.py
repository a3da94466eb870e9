"""gpt-fast's generate.py: every row of a batch gets one prompt, decode steps call back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.support.other_engines.clockwork import Steps, load, next_token


class Transformer:
    steps = Steps(eager=False)


def _load_model(
    checkpoint_path: Path, device: str, precision: torch.dtype, use_tp: bool
) -> Transformer:
    load()
    assert checkpoint_path.name == "model.pth"
    assert (device, precision, use_tp) == ("cpu", torch.bfloat16, False)
    return Transformer()


def decode_one_token(model: Transformer, known: torch.Tensor) -> torch.Tensor:
    model.steps.decode()
    return torch.tensor([[next_token(row)] for row in known.tolist()], dtype=torch.int)


@torch.no_grad()
def generate(
    model: Transformer,
    prompt: torch.Tensor,
    max_new_tokens: int,
    batch_size: int,
    *,
    interactive: bool,
    draft_model: Transformer | None,
    speculate_k: int | None = 8,
    callback: Callable[[torch.Tensor], Any] = lambda x: x,
    temperature: float = 1.0,
    top_k: int | None = None,
) -> tuple[torch.Tensor, dict[str, list[int]]]:
    assert not interactive
    assert draft_model is None
    assert (speculate_k, temperature, top_k) == (8, 0.0, None)
    rows = prompt.view(1, -1).repeat(batch_size, 1)
    model.steps.prompt()
    first = [[next_token(row)] for row in rows.tolist()]
    rows = torch.cat([rows, torch.tensor(first, dtype=torch.int)], dim=1)
    for _ in range(max_new_tokens - 1):
        token = decode_one_token(model, rows)
        callback(token.clone())
        rows = torch.cat([rows, token], dim=1)
    model.steps.batch_is_done()
    return rows, {"accept_counts": [0] * 9}
