"""Decode steps that others have measured, and what the model says of each.

In:  a file of points: a JSON list with an object for each, as in `published/decode_points.json`.
Out: `Point`s, and the prediction of each, on the card, host and engine that the point itself names.

    sheets = Sheets.shipped()
    points, unknown = read_points(SHIPPED_POINTS, sheets)
    predicted_ms(points[0], sheets)

A point whose card, model or class is not known is left out, and a line of `unknown` says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from mini_engine.files import read_json, typed
from mini_engine.model.config import SHAPES
from mini_engine.step.cards import DeviceSpec, Figure, Sheet, load_sheet, names, put_together
from mini_engine.step.kernels import StepShape
from mini_engine.step.run import Mode, StepModel
from mini_engine.step.storage import FORMATS, PUBLISHED, stored_as

SHIPPED_POINTS = Path(__file__).parent / "published" / "decode_points.json"
QUANTISED_POINTS = SHIPPED_POINTS.with_name("quantised_points.json")  # in no fit
KEPT = SHIPPED_POINTS.with_name("fit.json")  # what `validate --fit` found
USUAL_HOST = "server"
LAUNCHES: dict[str, Mode] = {"NONE": "eager", "PIECEWISE": "piecewise", "FULL": "full"}


@dataclass(frozen=True)
class Point:
    """One measured decode step."""

    id: str
    cls: str  # the engine and how it launches: "vLLM eager"; `class` in the file
    model: str
    card: str
    batch: int
    context: int  # tokens of each request, the new one included
    itl_ms: float
    host: str  # whose machine: the source's name, where nothing better is known
    source: str
    confidence: str = "high"
    quant: str | None = None  # a name of `storage`'s formats; None: as the model is

    def __post_init__(self) -> None:
        for name in ("batch", "context", "itl_ms"):
            value = getattr(self, name)
            if not 0 < value < 1e9:
                raise ValueError(f"{name} is {value}, expected a number above 0 and below 10^9")


@dataclass(frozen=True)
class Sheets:
    """All cards, hosts and engines, by name."""

    cards: Mapping[str, Sheet]
    hosts: Mapping[str, Sheet]
    engines: Mapping[str, Sheet]

    @classmethod
    def shipped(cls) -> Sheets:
        """Those that ship with the project, and the hosts whose speed the last fit found."""
        kinds = ("card", "host", "engine")
        sheets = cls(*({name: load_sheet(kind, name) for name in names(kind)} for kind in kinds))
        return sheets.with_hosts(json.loads(KEPT.read_text(encoding="utf-8"))["hosts"])

    def with_hosts(self, op_us: Mapping[str, float]) -> Sheets:
        """The same, with a host for each of these words: the usual one at a speed of its own."""
        usual = self.hosts[USUAL_HOST]
        said = "python -m mini_engine validate --fit"
        made = {
            word: replace(
                usual,
                name=word,
                words={**usual.words, "sources": [word]},
                figures={**usual.figures, "op_us": Figure(speed, "fitted", said)},
            )
            for word, speed in op_us.items()
        }
        return replace(self, hosts={**self.hosts, **made})

    @cached_property
    def engine_of(self) -> Mapping[str, tuple[Sheet, Mode]]:
        """Class of a point -> its engine, and how that launches."""
        return {
            words: (sheet, LAUNCHES[mode])
            for sheet in self.engines.values()
            for words, mode in sheet.words["classes"].items()
        }

    @cached_property
    def host_of(self) -> Mapping[str, Sheet]:
        """Host of a point -> its file."""
        return {word: s for s in self.hosts.values() for word in s.words["sources"]}

    def usual_host(self, point: Point) -> Sheet:
        """The host that the point's engine usually runs on."""
        return self.hosts[self.engine_of[point.cls][0].words["host"]]

    def spec(self, point: Point, host: Sheet | None = None) -> tuple[DeviceSpec, Mode, bool]:
        """The spec and mode that predict a point, and whether its host is known. A host that is not
        is taken for the one that the engine usually runs on."""
        engine, mode = self.engine_of[point.cls]
        known = host or self.host_of.get(point.host)
        feeds = known or self.usual_host(point)
        return put_together(self.cards[point.card], feeds, engine), mode, known is not None

    def complaint(self, point: Point) -> str | None:
        """One line that names what is not known of a point, or None."""
        for what, word, known in (
            ("card", point.card, sorted(self.cards)),
            ("model", point.model, sorted(SHAPES)),
            ("engine", point.cls, sorted(self.engine_of)),
            ("quant", point.quant or FORMATS[0], [*FORMATS, *PUBLISHED]),
        ):
            if word not in known:
                return f"{point.id}: no {what} {word!r}, known are {', '.join(known)}"
        return None

    def with_figure(self, kind: str, name: str, figure: str, value: float) -> Sheets:
        """The same, with another value of one figure."""
        field = f"{kind}s"
        sheets: Mapping[str, Sheet] = getattr(self, field)
        sheet = sheets[name]
        figures = {**sheet.figures, figure: replace(sheet.figures[figure], value=value)}
        changed = {**sheets, name: replace(sheet, figures=figures)}
        return replace(self, **{field: changed})


def predicted_ms(point: Point, sheets: Sheets, host: Sheet | None = None) -> float:
    """The ITL that the model predicts for a point, which the sheets must know."""
    spec, mode, _ = sheets.spec(point, host)
    config, shape = SHAPES[point.model], StepShape.decode(point.batch, point.context)
    stored = stored_as(config, point.quant)
    return StepModel(config, spec, spec.ops, stored).itl_us(mode, shape) / 1e3


def read_points(path: Path, sheets: Sheets) -> tuple[list[Point], list[str]]:
    """The points that the sheets know, and a line for each that they do not.

    Raises ValueError, naming file, point and field, for what is no file of points.
    """
    data = read_json(path)
    if not isinstance(data, list) or not data:
        raise ValueError(f"{path}: expected a list of points")
    points = [_point(item, f"{path}: point {n}") for n, item in enumerate(data, start=1)]
    ids = [point.id for point in points]
    if twice := next((id for id in ids if ids.count(id) > 1), None):
        raise ValueError(f"{path}: two points have one id, {twice!r:.40}")
    complaints = [sheets.complaint(point) for point in points]
    known = [p for p, complaint in zip(points, complaints, strict=True) if complaint is None]
    return known, [complaint for complaint in complaints if complaint]


def _point(item: object, where: str) -> Point:
    """A point with the names of our fields. Models and cards are known in any case."""
    if isinstance(item, dict):
        host = item.get("host") or item.get("source")
        item = {**item, "cls": item.get("class"), "card": item.get("gpu"), "host": str(host)}
    try:
        point = typed(Point, item, where, more=True)
    except ValueError as error:
        said = str(error).replace(": cls ", ": class ").replace(": card ", ": gpu ")
        raise ValueError(said) from None
    return replace(point, model=point.model.lower(), card=point.card.lower())
