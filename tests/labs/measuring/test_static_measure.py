"""The measuring step of lab 7b: what it says without a GPU, and its stopwatch on the emulator."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from labs.lab07b_static_cache import measure as lab07b  # noqa: E402
from labs.measuring import ledger  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.weights import random_weights  # noqa: E402
from tests.labs.measuring.test_decode_measure import SMALL  # noqa: E402


def test_without_a_gpu_it_predicts_and_says_that_nothing_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LABS_HOME", str(tmp_path))
    monkeypatch.setattr(lab07b, "why_not", lambda: "PyTorch finds no CUDA GPU here")
    assert lab07b.main(["--predict", "7.5"]) == 0
    told = capsys.readouterr().out
    assert "Not yet measured" in told
    assert told.count("not yet") == 3 * len(lab07b.BATCHES)
    assert "./lab measure 7b --predict 7.5" in told
    (entry,) = ledger.entries()
    assert (entry.what, entry.predicted, entry.measured) == (lab07b.LEDGER_LINE, 7.5, None)


def test_its_stopwatch_runs_every_way_on_the_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times mean nothing there."""
    monkeypatch.setattr(lab07b, "STEPS", 2)
    monkeypatch.setattr(lab07b, "ROUNDS", 2)
    backend = graphs_for("cpu")
    weights = random_weights(SMALL, backend.device, torch.float32, seed=0)
    timed = lab07b.measured(backend, weights, [3, 9], 64)
    assert set(timed) == {(2, name) for name in (lab07b.EAGER, lab07b.GRAPH, lab07b.PAGES)}
    assert all(us.median > 0 for us in timed.values())


def test_what_is_predicted_needs_a_part_of_what_a_mask_reads() -> None:
    predicted = lab07b.predicted_ms(lab07b.named_shape(lab07b.SHAPE), "h200", None)
    for batch in lab07b.BATCHES:
        contexts = lab07b.contexts_of(batch, lab07b.T_MAX)
        assert len(contexts) == batch
        (eager, read), (graph, same), (pages, all_) = (
            predicted[batch, name] for name in (lab07b.EAGER, lab07b.GRAPH, lab07b.PAGES)
        )
        assert read == same == pytest.approx(sum(contexts) / (batch * lab07b.T_MAX))
        assert all_ == 1
        assert pages < graph <= eager
