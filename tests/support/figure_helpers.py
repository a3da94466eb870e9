"""Look into figures as they are drawn, and make timelines to draw."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

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


PHONE = 358  # pixels: how wide a page of the site shows a figure there


def letters(monkeypatch: pytest.MonkeyPatch) -> list[Text]:
    """Every text that is written into a figure from now on, once, where it has been drawn."""
    found: dict[Text, None] = {}
    draw = Text.draw

    def remember(self: Text, renderer: Any, *args: Any, **options: Any) -> None:
        draw(self, renderer, *args, **options)
        if self.get_visible() and self.get_text().strip():
            found[self] = None

    monkeypatch.setattr(Text, "draw", remember)
    return found  # type: ignore[return-value]  # iterates as a list does


def unreadable(texts: Iterable[Text]) -> list[str]:
    """Texts with less than 10 pixels on a phone, those that cover others or leave the picture."""
    complaints, boxes = [], []
    for text in texts:
        figure = text.get_figure(root=True)
        said = text.get_text().replace("\n", " ")[:24]
        pixels = text.get_size() / 72 * PHONE / figure.get_size_inches()[0]
        if pixels < 9.95:
            complaints.append(f"{said!r} has {pixels:.1f} pixels on a phone")
        box = text.get_window_extent()
        if not (figure.bbox.x0 - 2 < box.x0 and box.x1 < figure.bbox.x1 + 2):
            complaints.append(f"{said!r} leaves the picture")
        for other, what in boxes:
            wide = min(box.x1, other.x1) - max(box.x0, other.x0)
            tall = min(box.y1, other.y1) - max(box.y0, other.y0)
            if wide > 3 and tall > 4 and text.get_rotation() % 90 == 0:
                complaints.append(f"{said!r} covers {what!r}")
        if text.get_rotation() % 90 == 0:
            boxes.append((box, said))
    return complaints


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
