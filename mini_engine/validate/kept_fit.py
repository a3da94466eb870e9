"""Keep what a fit found: in the files of cards, hosts and engines, and in `published/fit.json`.

In:  a `Fit`, its points, and the prediction of each point by a fit that has not seen its source.
Out: figures of kind "fitted" in their files, each with its interval; in the files of the engines,
     how wide the interval of a prediction is; and in `KEPT` the parameters, what the data cannot
     separate, and the predictions of left-out sources.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mini_engine.files import write_whole
from mini_engine.step.figures import FOLDERS
from mini_engine.validate.fit import Fit
from mini_engine.validate.published import KEPT, Point, Sheets
from mini_engine.validate.validate import GROUPS, quantile

COMMAND = "python -m mini_engine validate --fit"


def keep(fit: Fit, points: Sequence[Point], left_out_ms: Mapping[str, float]) -> dict[str, Any]:
    """Write the files. Returns what `KEPT` holds."""
    for index, parameter in enumerate(fit.parameters):
        low, high = fit.interval(index)
        said = (
            f"{COMMAND}: {len(points)} points of {len({p.source for p in points})} sources, 90% "
            f"interval {rounded(low)} to {rounded(high)}, "
            f"prior {parameter.prior:g} ({parameter.why})"
        )
        figure = {"value": rounded(fit.value(index)), "kind": "fitted", "source": said}
        for kind, name in parameter.where:
            if (FOLDERS[kind] / f"{name}.json").exists():  # other hosts stand in `KEPT` alone
                _change(kind, name, {parameter.figure: figure})
    widths = misses(points, fit.sheets, left_out_ms)
    for name, engine in fit.sheets.engines.items():
        modes = {*engine.words["classes"].values(), "NONE", "PIECEWISE", "FULL"}
        _change("engine", name, {"missed": {m: widths[m] for m in sorted(modes) if m in widths}})
    kept = {
        "command": COMMAND,
        "parameters": [
            {
                "name": p.name,
                "figure": p.figure,
                "files": [f"{kind} {name}" for kind, name in p.where],
                "value": rounded(fit.value(i)),
                "low": rounded(fit.interval(i)[0]),
                "high": rounded(fit.interval(i)[1]),
                "prior": p.prior,
                "prior_from": p.why,
                "told_by_data": round(fit.told_by_data(i), 2),
            }
            for i, p in enumerate(fit.parameters)
        ],
        "hosts": {
            p.where[0][1]: rounded(fit.value(i))
            for i, p in enumerate(fit.parameters)
            if p.figure == "op_us" and not (FOLDERS["host"] / f"{p.where[0][1]}.json").exists()
        },
        "inseparable": [list(pair) for pair in fit.inseparable()],
        "left_out_ms": {id: round(ms, 4) for id, ms in sorted(left_out_ms.items())},
    }
    write_whole(KEPT, json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    return kept


def read_kept() -> dict[str, Any]:
    """What the last fit left."""
    data: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8"))
    return data


def misses(
    points: Sequence[Point], sheets: Sheets, left_out_ms: Mapping[str, float]
) -> dict[str, dict[str, Any]]:
    """For each way to launch, how wide an interval must be to hold 80% of the points when their
    source is left out of the fit: half its width, as a log."""
    widths = {}
    for group in GROUPS.values():
        logs = sorted(
            abs(math.log(left_out_ms[p.id] / p.itl_ms))
            for p in points
            if p.id in left_out_ms and GROUPS[sheets.engine_of[p.cls][1]] == group
        )
        if logs:
            said = f"{COMMAND}: 80% of {len(logs)} points, each source left out in turn"
            value = rounded(quantile(logs, 0.8))
            widths[group] = {"value": value, "kind": "fitted", "source": said}
    return widths


def rounded(value: float) -> float:
    """To four significant digits."""
    return float(f"{value:.4g}")


def _change(kind: str, name: str, fields: Mapping[str, Any]) -> None:
    path: Path = FOLDERS[kind] / f"{name}.json"
    data = json.loads(path.read_text(encoding="utf-8")) | dict(fields)
    write_whole(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")
