"""Fit the figures that nobody publishes to the decode steps that somebody has measured.

Every parameter is a positive figure with a prior, which is what was published about it or else what
is usual, and a spread around that. With theta = log(value / prior) / spread, the fit minimises

    sum over points of huber(log(predicted / measured) / sigma) + sum of theta^2 / 2

by Gauss-Newton steps with Levenberg's damping. Sigma is 4, 8 or 20%, depending on how sure a point
is. The n points of one source together count as much as sqrt(n) points, since they share a machine.
"""

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from operator import itemgetter
from typing import cast, get_args

import numpy as np
from numpy.typing import NDArray

from mini_engine.files import read_json, read_object, typed, write_whole
from mini_engine.step.cards import FOLDERS, INTERVALS, Interval, Launched, shipped_sheet
from mini_engine.validate import points as measured
from mini_engine.validate.points import COMMAND, KEPT, USUAL_HOST, Point, Sheets, predicted_ms

PARAMETERS = KEPT.with_name("parameters.json")
SIGMA = {"high": 0.04, "medium": 0.08, "low": 0.20}
HUBER = 1.5  # beyond so many sigmas a point pulls with constant force
Z90 = 1.645
STEPS = 30
LEFT_OUT_STEPS = 5  # from the full fit on
BATCHES = ((1, 1), (2, 8), (9, 64), (65, 1_000_000))  # an interval for each
LEAST_SOURCES = 3  # that an interval is told from

# Of each way to launch and range of batches: the source of each point, and the log of what was
# measured over what a fit without this source predicts.
Missed = dict[tuple[Launched, int, int], list[tuple[str, float]]]


@dataclass(frozen=True)
class Parameter:
    """One number to fit. It may stand in several files: `where` has a (kind, name) for each."""

    name: str
    figure: str
    where: tuple[tuple[str, str], ...]
    prior: float
    spread: float  # of the log
    why: str  # where the prior comes from
    top: float = sys.float_info.max

    def at(self, theta: float) -> float:
        return min(self.prior * math.exp(self.spread * theta), self.top)


@dataclass(frozen=True)
class Fit:
    parameters: tuple[Parameter, ...]
    theta: NDArray[np.float64]
    covariance: NDArray[np.float64]
    sheets: Sheets

    def value(self, index: int) -> float:
        return self.parameters[index].at(float(self.theta[index]))

    def interval(self, index: int) -> tuple[float, float]:
        """90%, from the curvature at the end of the fit."""
        half, middle = Z90 * math.sqrt(self.covariance[index, index]), float(self.theta[index])
        parameter = self.parameters[index]
        return parameter.at(middle - half), parameter.at(middle + half)

    def told_by_data(self, index: int) -> float:
        """0: the data say nothing, the prior stands; 1: the data alone decide."""
        return max(0.0, 1 - float(self.covariance[index, index]))

    def inseparable(self, above: float = 0.9) -> list[tuple[str, str, float]]:
        """Pairs of parameters that the data cannot tell apart, with their correlation."""
        sd = np.sqrt(np.diag(self.covariance))
        correlation = self.covariance / np.outer(sd, sd)
        names = [parameter.name for parameter in self.parameters]
        found = np.argwhere(np.triu(np.abs(correlation) > above, k=1))
        return [(names[i], names[j], float(correlation[i, j])) for i, j in found]


def hosts_to_fit(points: Sequence[Point], sheets: Sheets) -> Sheets:
    words = {p.host for p in points if sheets.engine_of[p.cls][1] != "FULL"} - {*sheets.host_of}
    return sheets.with_hosts(dict.fromkeys(sorted(words), sheets.hosts[USUAL_HOST]["op_us"]))


def fit_points(
    points: Sequence[Point], sheets: Sheets, parameters: Sequence[Parameter],
    start: NDArray[np.float64] | None = None, steps: int = STEPS,
) -> Fit:  # fmt: skip
    problem = _Problem(points, sheets, tuple(parameters))
    theta = np.zeros(len(parameters)) if start is None else start.copy()
    residuals, damping = problem.residuals(theta), 1e-2
    for _ in range(steps):
        jacobian = problem.jacobian(theta, residuals)
        weights = np.minimum(1, HUBER / np.maximum(np.abs(residuals), 1e-12)) * problem.counts
        normal = (jacobian.T * weights) @ jacobian + np.eye(len(theta))
        gradient = (jacobian.T * weights) @ residuals + theta
        step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -gradient)
        there = np.minimum(theta + step, problem.tops)  # a figure at its top stays there
        tried = problem.residuals(there)
        before, after = problem.loss(residuals, theta), problem.loss(tried, there)
        if after < before:
            theta, residuals, damping = there, tried, damping / 4
            if before - after < 1e-5 * before:
                break
        else:
            damping *= 8
            if damping > 1e8:
                break
    covariance = np.linalg.inv(normal)
    return Fit(problem.parameters, theta, covariance, problem.sheets_at(theta))


def left_out(
    points: Sequence[Point], fit: Fit, progress: Callable[[], None] = lambda: None
) -> dict[str, float]:
    """For each point, the prediction in ms of a fit that has not seen its source."""
    found: dict[str, float] = {}
    for source in sorted({point.source for point in points}):
        others = [point for point in points if point.source != source]
        found |= _unseen([point for point in points if point.source == source], others, fit)
        progress()
    return found


def left_out_beside(points: Sequence[Point], judged: Sequence[Point], fit: Fit) -> dict[str, float]:
    """For each of the points that are in no fit, and whose source or machine is in this one, the
    prediction in ms of a fit that has not seen these."""
    found: dict[str, float] = {}
    for host in sorted({point.host for point in judged}):
        own = [point for point in judged if point.host == host]
        sources = {point.source for point in own}
        others = [p for p in points if p.host != host and p.source not in sources]
        if len(others) < len(points):
            found |= _unseen(own, others, fit)
    return found


def _unseen(own: Sequence[Point], others: Sequence[Point], fit: Fit) -> dict[str, float]:
    if not others:
        return {}
    sheets = fit_points(others, fit.sheets, fit.parameters, fit.theta, LEFT_OUT_STEPS).sheets
    seen = {point.host for point in others}
    hosts = {p.id: None if p.host in seen else sheets.usual_host(p) for p in own}
    return {point.id: predicted_ms(point, sheets, hosts[point.id]) for point in own}


class _Problem:
    """The points as residuals of theta. A derivative is taken only where a parameter has a say."""

    def __init__(
        self, points: Sequence[Point], sheets: Sheets, parameters: tuple[Parameter, ...]
    ) -> None:
        self.points, self.sheets, self.parameters = list(points), sheets, parameters
        self.tops = np.array([math.log(p.top / p.prior) / p.spread for p in parameters])
        per_source = Counter(point.source for point in points)
        self.counts = np.array([1 / math.sqrt(per_source[point.source]) for point in points])
        self.sigma = np.array([SIGMA.get(point.confidence, 0.06) for point in points])
        hosts = [sheets.host_of.get(p.host) or sheets.usual_host(p) for p in points]
        uses = [
            {("card", p.card), ("host", host.name), ("engine", sheets.engine_of[p.cls][0].name)}
            for p, host in zip(points, hosts, strict=True)
        ]
        self.moved = [
            [at for at, used in enumerate(uses) if used & {*one.where}] for one in parameters
        ]

    def sheets_at(self, theta: NDArray[np.float64]) -> Sheets:
        sheets = self.sheets
        for parameter, t in zip(self.parameters, theta, strict=True):
            for kind, name in parameter.where:
                sheets = sheets.with_figure(kind, name, parameter.figure, parameter.at(float(t)))
        return sheets

    def residuals(
        self, theta: NDArray[np.float64], which: Sequence[int] | None = None
    ) -> NDArray[np.float64]:
        sheets, chosen = self.sheets_at(theta), [*(which or range(len(self.points)))]
        points = [self.points[i] for i in chosen]
        ratios = [predicted_ms(point, sheets) / point.itl_ms for point in points]
        found: NDArray[np.float64] = np.log(ratios) / self.sigma[chosen]
        return found

    def jacobian(self, theta: NDArray[np.float64], at: NDArray[np.float64]) -> NDArray[np.float64]:
        found = np.zeros((len(self.points), len(theta)))
        for column, moved in enumerate(self.moved):
            if moved:
                nudged = theta.copy()
                nudged[column] -= 0.02  # down: above its top a figure no longer moves
                found[moved, column] = (at[moved] - self.residuals(nudged, moved)) / 0.02
        return found

    def loss(self, residuals: NDArray[np.float64], theta: NDArray[np.float64]) -> float:
        size = np.abs(residuals)
        huber = np.where(size < HUBER, size**2 / 2, HUBER * size - HUBER**2 / 2)
        return float((huber * self.counts).sum() + (theta**2).sum() / 2)


def parameters(sheets: Sheets) -> tuple[Parameter, ...]:
    """What `validate --fit` fits: the rows of `PARAMETERS`. "family" stands for its cards, and the
    host "fitted" for every host whose speed is fitted, each a parameter of its own."""
    found = []
    for number, row in enumerate(cast(list[object], read_json(PARAMETERS)), start=1):
        one = typed(Parameter, row, f"{PARAMETERS}: {number}")
        (kind, word), *_ = one.where
        if kind == "family":
            cards = (n for n, card in sheets.cards.items() if card.words["family"] == word)
            found.append(replace(one, where=tuple(("card", name) for name in cards)))
        elif kind == "host":
            fitted = (n for n, host in sheets.hosts.items() if host.figures["op_us"].kind == word)
            found += [replace(one, name=f"host {n}", where=(("host", n),)) for n in sorted(fitted)]
        else:
            found.append(replace(one, where=tuple((kind, name) for kind, name in one.where)))
    return tuple(found)


def refit(tell: Callable[[str], None]) -> None:
    """Fit to the shipped points, predict each source without having seen it, and `keep` that."""
    sheets, done = Sheets.shipped(), count(1)
    points, _ = measured.read_points(measured.SHIPPED_POINTS, sheets)
    others, _ = measured.read_points(measured.IN_NO_FIT["spread"], sheets)
    sheets, of = hosts_to_fit(points, sheets), len({point.source for point in points})
    fit = fit_points(points, sheets, parameters(sheets))
    without = left_out(points, fit, lambda: tell(f"fit {next(done)} of {of}"))
    keep(fit, points, without | left_out_beside(points, others, fit))


def keep(fit: Fit, points: Sequence[Point], left_out_ms: Mapping[str, float]) -> None:
    parameters, hosts = [], {}
    for index, p in enumerate(fit.parameters):
        value, low, high = map(rounded, (fit.value(index), *fit.interval(index)))
        said = (
            f"{COMMAND}: {len(points)} points of {len({p.source for p in points})} sources, 90% "
            f"interval {low} to {high}, prior {p.prior:g} ({p.why})"
        )
        for kind, name in p.where:
            path = FOLDERS[kind] / f"{name}.json"
            if path.exists():
                data = read_object(path)
                data[p.figure] = {"value": value, "kind": "fitted", "source": said}
                write_whole(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")
            else:  # the hosts that stand in `KEPT` alone
                hosts[name] = value
        parameters.append({
            "name": p.name, "figure": p.figure, "files": [" ".join(where) for where in p.where],
            "value": value, "low": low, "high": high, "prior": p.prior, "prior_from": p.why,
            "told_by_data": round(fit.told_by_data(index), 2),
        })  # fmt: skip
    left_out_ms = {id: round(ms, 4) for id, ms in sorted(left_out_ms.items())}
    rows = [vars(one) for one in intervals(missed_by(points, fit.sheets, left_out_ms))]
    write_whole(INTERVALS, "[\n" + ",\n".join(f" {json.dumps(row)}" for row in rows) + "\n]\n")
    kept = {"command": COMMAND, "parameters": parameters, "hosts": hosts,
            "inseparable": fit.inseparable(), "left_out_ms": left_out_ms}  # fmt: skip
    write_whole(KEPT, json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    shipped_sheet.cache_clear()  # whoever judges this fit reads the sheets anew


def missed_by(points: Sequence[Point], sheets: Sheets, left_out_ms: Mapping[str, float]) -> Missed:
    """How far each point lies from its prediction, by kind of step."""
    found: Missed = {(name, *batches): [] for name in get_args(Launched) for batches in BATCHES}
    for point in (point for point in points if point.id in left_out_ms):
        batches = next(of for of in BATCHES if point.batch <= of[1])
        log = math.log(point.itl_ms / left_out_ms[point.id])
        found[sheets.engine_of[point.cls][1], *batches].append((point.source, log))
    return {kind: logs for kind, logs in found.items() if logs}


def ends(logs: Sequence[tuple[str, float]]) -> tuple[float, float] | None:
    """Where a step of one more source lies in 80% of all cases, as logs; None where fewer than
    three sources tell. The n points of a source together count as much as sqrt(n), as in the fit.
    The next source may lie beyond all k that are known, so each end leaves out a tenth of k + 1 of
    them, not of k: with nine or fewer it leaves out none."""
    per_source = Counter(source for source, _ in logs)
    if len(per_source) < LEAST_SOURCES:
        return None
    logs = sorted(logs, key=itemgetter(1))
    weights = np.array([1 / math.sqrt(per_source[source]) for source, _ in logs])
    middles = (weights.cumsum() - weights / 2) / weights.sum()
    top = min(1.0, 0.9 * (1 + 1 / len(per_source)))
    low, high = np.interp([1 - top, top], middles, [log for _, log in logs])
    return float(low), float(high)


def intervals(missed: Missed) -> list[Interval]:
    """What is known of each kind of step, and what its predictions are printed with."""
    found = []
    for kind, logs in missed.items():
        sources, inside = {source for source, _ in logs}, list[bool]()
        for left in sources:  # judged by the interval that the others make
            if known := ends([one for one in logs if one[0] != left]):
                inside += [known[0] <= log <= known[1] for source, log in logs if source == left]
        errors = np.expm1([-log for _, log in logs])
        figures = [*map(rounded, (float(np.median(np.abs(errors))), float(np.median(errors))))]
        if known := ends(logs):
            figures += [rounded(math.exp(end)) for end in known]
        if inside:
            figures.append(rounded(sum(inside) / len(inside)))
        found.append(Interval(*kind, len(logs), len(sources), *figures))
    return found


def rounded(value: float) -> float:
    """To four significant digits."""
    return float(f"{value:.4g}")
