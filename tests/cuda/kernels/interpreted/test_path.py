"""A whole text in kernels is the plain model's."""

from __future__ import annotations

from pathlib import Path

from mini_engine.cuda.generate import generate
from tests.support.checkpoint_helpers import write_smallest


def test_the_kernels_themselves_write_the_text_of_plain_layers(tmp_path: Path) -> None:
    """One replay of two steps, and one of the single step that is left."""
    folder = write_smallest(tmp_path)
    plain = generate(folder, ["w3"], "NONE", max_new_tokens=4, kernels=0)
    done = generate(folder, ["w3"], "FULL_DECODE_ONLY", max_new_tokens=4, steps_per_replay=2)
    assert (done.kernels_per_layer, done.texts) == (5, plain.texts)
