"""Look into figures as they are drawn, and make timelines to draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mini_engine.sim.trace import CPU, GPU, TraceEvent


def watch(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Every figure that is saved from now on; the files are written as well."""
    figures: list[Figure] = []
    save = Figure.savefig

    def remember(self: Figure, *args: Any, **options: Any) -> None:
        figures.append(self)
        save(self, *args, **options)

    monkeypatch.setattr(Figure, "savefig", remember)
    return figures


def words(figure: Figure) -> str:
    """All that is written on the figure, outside and inside its panels."""
    texts = [*figure.texts]
    for axes in figure.axes:
        texts += axes.texts
        texts += [axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label]
        legend = axes.get_legend()
        texts += legend.get_texts() if legend else []
    return "\n".join(text.get_text() for text in texts)


def panels(figure: Figure) -> list[Axes]:
    """The panels that draw something, from the top of the figure to its bottom."""
    drawn = [axes for axes in figure.axes if axes.axison]
    return sorted(drawn, key=lambda axes: -axes.get_position().y0)


def step(launch_us: float, *, kernels: int = 40, category: str = "kernel") -> list[TraceEvent]:
    """A step on two lanes: 100 µs of engine, then kernels of 2 µs, one every `launch_us`."""
    events = [TraceEvent(CPU, "schedule", 7.0, 100.0, "host")]
    for i in range(kernels):
        at = 107.0 + i * launch_us
        events.append(TraceEvent(CPU, f"op_{i}", at, launch_us, "launch"))
        events.append(TraceEvent(GPU, f"op_{i}", at + launch_us, 2.0, category))
    events.append(TraceEvent(CPU, "synchronize", events[-1].end_us, 10.0, "wait"))
    return events


def png_size(path: Path) -> tuple[int, int]:
    """Width and height, from the header. Raises AssertionError if it is no PNG."""
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
