"""Decode steps that others have measured, and how far the model is from them.

A file of points is a JSON list with an object for each, as in `published/decode_points.json`. A
point whose card, model or class is not known is left out, and a line of `unknown` says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np

from mini_engine.files import read_json, read_object, typed
from mini_engine.model.config import SHAPES
from mini_engine.step import cards
from mini_engine.step.cards import DeviceSpec, Launched, Sheet
from mini_engine.step.kernels import StepShape
from mini_engine.step.run import WAYS, with_pdl
from mini_engine.step.speculation import head_of, speculated
from mini_engine.step.step_model import StepModel
from mini_engine.step.storage import FORMATS, PUBLISHED, stored_as

SHIPPED_POINTS = Path(__file__).parent / "published" / "decode_points.json"
IN_NO_FIT = {  # weights in few bits; experts and several GPUs
    name: SHIPPED_POINTS.with_name(f"{name}_points.json") for name in ("quantised", "spread")
}
DRAFT_POINTS = SHIPPED_POINTS.with_name("speculation_points.json")
KEPT = SHIPPED_POINTS.with_name("fit.json")  # what `validate --fit` found
COMMAND = "python -m mini_engine validate --fit"
USUAL_HOST = "server"
WITHIN = 0.10


def read_kept() -> dict[str, Any]:
    return read_object(KEPT)


@dataclass(frozen=True)
class Point:
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
    tp: int = 1  # GPUs that computed the step together
    touched: float | None = None  # experts a layer, where the source tells
    prompt: int = 0  # tokens of each prompt, where the source timed their computing along with
    new: int = 1  # so many new tokens of each request

    def __post_init__(self) -> None:
        for name in ("batch", "context", "itl_ms", "tp"):
            value = getattr(self, name)
            if not 0 < value < 1e9:
                raise ValueError(f"{name} is {value}, expected a number above 0 and below 10^9")


@dataclass(frozen=True)
class Sheets:
    cards: Mapping[str, Sheet]
    hosts: Mapping[str, Sheet]
    engines: Mapping[str, Sheet]

    @classmethod
    def shipped(cls) -> Sheets:
        """Those that ship with the project, and the hosts whose speed the last fit found."""
        every = ({name: cards.load_sheet(kind, name) for name in cards.names(kind)}
                 for kind in ("card", "host", "engine"))  # fmt: skip
        return cls(*every).with_hosts(read_kept()["hosts"])

    def with_card(self, path: Path) -> Sheets:
        sheet = cards.load_sheet("card", path)
        return replace(self, cards={**self.cards, sheet.name.lower(): sheet})

    def with_hosts(self, op_us: Mapping[str, float]) -> Sheets:
        """With a host more for each of these words: the usual one at a speed of its own."""
        usual, made = self.hosts[USUAL_HOST], {}
        for word, speed in op_us.items():
            told = usual.with_figure("op_us", value=speed, kind="fitted", source=COMMAND)
            made[word] = replace(told, name=word, words={**usual.words, "sources": [word]})
        return replace(self, hosts={**self.hosts, **made})

    @cached_property
    def engine_of(self) -> Mapping[str, tuple[Sheet, Launched]]:
        """Class of a point -> its engine, and how that launches."""
        return {
            words: (sheet, launched)
            for sheet in self.engines.values()
            for words, launched in sheet.words["classes"].items()
        }

    @cached_property
    def host_of(self) -> Mapping[str, Sheet]:
        """Host of a point -> its file."""
        return {word: s for s in self.hosts.values() for word in s.words["sources"]}

    def usual_host(self, point: Point) -> Sheet:
        return self.hosts[self.engine_of[point.cls][0].words["host"]]

    def spec(self, point: Point, host: Sheet | None = None) -> tuple[DeviceSpec, Launched, bool]:
        """The spec that predicts a point, how it launches, and whether its host is known. A host
        that is not is taken for the one that the engine usually runs on."""
        engine, launched = self.engine_of[point.cls]
        known = host or self.host_of.get(point.host)
        spec = cards.put_together(self.cards[point.card], known or self.usual_host(point), engine)
        return with_pdl(spec) if engine.words["pdl"] else spec, launched, known is not None

    def with_figure(self, kind: str, name: str, figure: str, value: float) -> Sheets:
        sheets = {**getattr(self, f"{kind}s")}
        sheets[name] = sheets[name].with_figure(figure, value=value)
        return replace(self, **{f"{kind}s": sheets})


def predicted_ms(point: Point, sheets: Sheets, host: Sheet | None = None) -> float:
    spec, launched, _ = sheets.spec(point, host)
    config = SHAPES[point.model].shard(point.tp)
    model = StepModel(config, spec, stored_as(config, point.quant))
    shape = replace(StepShape.decode(point.batch, point.context), touched=point.touched)
    ms = model.itl_us(WAYS[launched], shape) / 1e3
    if point.prompt:
        prompt = StepShape.mixed([point.prompt] * point.batch, [point.prompt] * point.batch)
        ms += model.itl_us("eager", prompt) / 1e3 / point.new
    return ms


def read_points(path: Path, sheets: Sheets) -> tuple[list[Point], list[str]]:
    """The points that the sheets know, and a line for each that they do not. Raises ValueError,
    naming file, point and field, for what is no file of points."""
    data = read_json(path)
    if not isinstance(data, list) or not data:
        raise ValueError(f"{path}: expected a list of points")
    points = [_point(item, f"{path}: point {n}") for n, item in enumerate(data, start=1)]
    known, unknown = list[Point](), list[str]()
    for point in points:
        for what, word, of in (
            ("card", point.card, sheets.cards), ("model", point.model, SHAPES),
            ("engine", point.cls, sheets.engine_of),
            ("quant", point.quant or FORMATS[0], (*FORMATS, *PUBLISHED)),
        ):  # fmt: skip
            if word not in of:
                known_are = f"known are {', '.join(sorted(of))}"
                unknown.append(f"{point.id}: no {what} {word!r}, {known_are}")
                break
        else:
            known.append(point)
    return known, unknown


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


@dataclass(frozen=True)
class Row:
    point: Point
    predicted_ms: float
    low_ms: float | None  # of the interval, where one is known
    high_ms: float | None
    host: str  # the file that stands for the point's host
    host_known: bool  # else it is the one that the engine usually runs on
    launched: str  # NONE, PIECEWISE or FULL
    left_out_ms: float | None = None  # predicted by a fit that had not seen the point's source

    @property
    def kind(self) -> str:
        """The class, and how the weights are stored where that is not the model's own way; of
        experts and several GPUs, that they are."""
        p = self.point
        more = [SHAPES[p.model].experts and "experts", p.tp > 1 and "several GPUs"]
        return ", ".join([p.cls, *(filter(None, more) if any(more) else filter(None, [p.quant]))])

    @property
    def step(self) -> tuple[object, ...]:
        """What was measured, however it was launched: the maker of the engine, host, model, ..."""
        p = self.point
        return p.cls.split()[0], p.host, p.model, p.card, p.batch, p.context, p.quant

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_ms / self.point.itl_ms - 1

    @property
    def inside(self) -> bool | None:
        """Does the interval hold the measured time? None where there is no interval."""
        if self.low_ms is None or self.high_ms is None:
            return None
        return self.low_ms <= self.point.itl_ms <= self.high_ms

    @property
    def left_out_error(self) -> float | None:
        return None if self.left_out_ms is None else self.left_out_ms / self.point.itl_ms - 1


@dataclass(frozen=True)
class Summary:
    """Errors of some points. Shares, not percent."""

    name: str
    points: int
    sources: int
    median_error: float  # of the absolute values
    p90_error: float
    bias: float  # the median with its sign
    within: float  # share of points within 10%
    left_out_median: float | None  # the median, each source left out of the fit


@dataclass(frozen=True)
class Pair:
    slow: Row
    fast: Row

    @property
    def measured(self) -> float:
        return self.slow.point.itl_ms / self.fast.point.itl_ms

    @property
    def predicted(self) -> float:
        return self.slow.predicted_ms / self.fast.predicted_ms


def rows_of(
    points: Sequence[Point], sheets: Sheets, left_out: Mapping[str, float] | None = None
) -> list[Row]:
    rows = []
    for point in points:
        spec, launched, known = sheets.spec(point)
        ms = predicted_ms(point, sheets)
        low, high = spec.interval(ms, launched, point.batch) or (None, None)
        without = (left_out or {}).get(point.id)
        rows.append(Row(point, ms, low, high, spec.host, known, launched, without))
    return rows


def summary(name: str, rows: Sequence[Row]) -> Summary:
    """Of one row or more."""
    errors = [abs(row.error) for row in rows]
    others = [abs(row.left_out_error) for row in rows if row.left_out_error is not None]
    return Summary(
        name, len(rows), len({row.point.source for row in rows}),
        median(errors), float(np.quantile(errors, 0.9)), median(row.error for row in rows),
        sum(error <= WITHIN for error in errors) / len(errors), median(others) if others else None,
    )  # fmt: skip


def by_class(rows: Sequence[Row]) -> list[Summary]:
    """One summary for each class, and for each way to store weights, in alphabetical order."""
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(row.kind, []).append(row)
    return [summary(name, kinds[name]) for name in sorted(kinds)]


def pairs(rows: Sequence[Row]) -> list[Pair]:
    """What a graph bought somebody: one step launched in two ways, the slower one first."""
    order = [*WAYS]
    return [
        Pair(slow, fast)
        for slow, fast in product(rows, rows)
        if order.index(slow.launched) < order.index(fast.launched) and slow.step == fast.step
    ]


@dataclass(frozen=True)
class DraftRow:
    """The same requests with drafts and without. A point brings its own acceptance, as tokens a
    step, so that what is judged is the cost of a step."""

    point: Mapping[str, Any]  # of `DRAFT_POINTS`, which says what its fields are
    predicted: float  # how many times as fast as without drafts

    @property
    def measured(self) -> float:
        return float(self.point["plain_ms"] / self.point["ms"])

    @property
    def error(self) -> float:
        """Above 0: the model promises too much."""
        return self.predicted / self.measured - 1


def draft_rows() -> list[DraftRow]:
    """The published points with drafts, each predicted."""
    rows = []
    for point in cast(list[dict[str, Any]], read_object(DRAFT_POINTS)["points"]):
        config, spec = SHAPES[point["model"]], cards.load_spec(point["gpu"], engine=point["engine"])
        found = speculated(
            config, spec, batch=point["batch"], context=point["context"], drafts=point["drafts"],
            draft=head_of(config) if point["draft"] == "head" else None,
        )  # fmt: skip
        rows.append(DraftRow(point, point["tokens"] / found.longer))
    return rows
