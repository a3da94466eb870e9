"""Hold the model against what others have measured: how far off is it, and what does a graph buy?

  python -m mini_engine validate
  python -m mini_engine validate --points mine.json
  python -m mini_engine validate --fit
  python -m mini_engine validate --speculation

`bias` is the median error with its sign. The column "left out" is the honest one: each source is
predicted by a fit that has not seen it. An interval is where 80% of such points lie, and there is
none where fewer than three sources tell. Steps with weights in few bits, of experts and of several
GPUs are in no fit: they are classes of their own.

--points takes a file in the format of validate/published/decode_points.json; a host that nobody has
measured is taken for the engine's usual one. --fit finds the figures that nobody publishes from the
shipped points, fits again with each source left out, and writes cards/, hosts/ and engines/.
"""

import math
from pathlib import Path
from statistics import median

from mini_engine.cli import options
from mini_engine.cli.terminal import Args, Columns, Found, Screen, table
from mini_engine.step.cards import intervals
from mini_engine.validate import fit
from mini_engine.validate import points as measured

FEW = "Weights in few bits, and llama.cpp in 16: in no fit"
SPREAD = "Experts, and several GPUs: in no fit"
FARTHEST: Columns = {
    "<point": "{0.point.id}", "<class": "{0.point.cls}", "measured": "{0.point.itl_ms:.2f}",
    "predicted": "{0.predicted_ms:two}", "error": "{0.error:+.0%}"}  # fmt: skip
POINTS: Columns = {
    **FARTHEST, "interval": lambda row: options.ends(row.low_ms, row.high_ms),
    "<host": lambda row: row.host + ("" if row.host_known else ", the usual one")}  # fmt: skip
CLASSES: Columns = {
    "<class": "{0.name}", "points": "{0.points}", "from": "{0.sources}",
    "median": "{0.median_error:.1%}", "p90": "{0.p90_error:.1%}", "bias": "{0.bias:+.1%}",
    "in 10%": "{0.within:.0%}", "left out": "{0.left_out_median:.1%}"}  # fmt: skip
BATCHES: Columns = {
    "batch": lambda one: f"{one.mode}, {one.least}" + (
        "" if one.most == one.least else f" to {one.most}" if one.most < 1e6 else " and more"),
    "points": "{0.points}", "sources": "{0.sources}", "median": "{0.median:.1%}",
    "bias": "{0.bias:+.1%}", "interval": lambda one: options.ends(one.low, one.high, to="–"),
    "inside": "{0.inside:.0%}"}  # fmt: skip
PAIRS: Columns = {
    "<slow": "{0.slow.point.id}", "<fast": "{0.fast.point.id}", "measured": "{0.measured:.2f} x",
    "predicted": "{0.predicted:.2f} x"}  # fmt: skip
DRAFTS: Columns = {
    "<drafts": "{0.point[id]}", "batch": "{0.point[batch]}",
    "k": "{0.point[drafts]}", "tokens": "{0.point[tokens]:.2f}",
    "measured": "{0.measured:.2f}", "predicted": "{0.predicted:.2f}", "error": "{0.error:+.0%}",
}  # fmt: skip
SHARED = ""
OPTIONS: options.Rows = {
    "--points FILE": (Path, None, "measured points (default: the published ones)"),
    "--spec FILE": (Path, None, "a card of your own that points name, as calibrate writes one"),
    "--all": (bool, None, "every point and pair (own points are always printed)"),
    "--speculation": (bool, None, "only steps that check drafts: how many times as fast they are"),
    "--fit": (bool, None, "fit the figures to the shipped points, and write them"),
    "-o --out DIR": (options.out_folder, "out", "for the two pictures")}  # fmt: skip


def run(args: Args, console: Screen) -> Found:
    from mini_engine import plots

    if args.speculation + args.fit + bool(args.points) > 1:
        raise ValueError("--speculation has points of its own, --fit the shipped ones: choose one")
    if args.speculation:
        return {"drafts": measured.draft_rows()}
    if args.fit:
        with console.status("fitting") as status:
            fit.refit(status.update)
    sheets, kept = measured.Sheets.shipped(), measured.read_kept()
    sheets = sheets.with_card(args.spec) if args.spec else sheets
    points, unknown = measured.read_points(args.points or measured.SHIPPED_POINTS, sheets)
    left_out_ms = None if args.points else kept["left_out_ms"]
    rows = measured.rows_of(points, sheets, left_out_ms)
    if not rows:
        raise ValueError(f"nothing to judge: {'; '.join(unknown) or 'no point is left'}")
    judged, apart = _judged(rows), dict[str, Found | None](quantised=None, spread=None)
    pictures = [args.out / "validate-points.png", args.out / "validate-errors.png"]
    plots.predicted_against_measured(rows, pictures[0])
    plots.errors_by_class(rows, judged["classes"], pictures[1])
    for name, path in () if args.points else measured.IN_NO_FIT.items():
        others, _ = measured.read_points(path, sheets)
        apart[name] = _judged(measured.rows_of(others, sheets, left_out_ms))
    return {
        **judged, "unknown": unknown, **apart, "pairs": measured.pairs(rows),
        "batches": intervals(), "parameters": kept["parameters"],
        "inseparable": kept["inseparable"], "pictures": pictures}  # fmt: skip


def _judged(rows: list[measured.Row]) -> Found:
    summary = measured.summary("all", rows)
    return {"points": rows, "classes": measured.by_class(rows), "summary": summary}


def show(r: Args, console: Screen) -> None:
    say = console.print
    if r.speculation:
        say(table(DRAFTS, r.drafts, title="With drafts: how many times as many tokens a second"))
        errors, sources = [row.error for row in r.drafts], {row.point["source"] for row in r.drafts}
        error, bias = median(map(abs, errors)), median(errors)
        say(f"{len(r.drafts)} points: median error {error:.0%}, bias {bias:+.0%}. In no fit. From:")
        return say(*sorted(sources), sep="\n")
    for line in r.unknown:
        say(f"left out: {line}")
    each = r.all or not r.quantised  # of the points of one's own, and not of the published ones
    for title, judged in {"By class": vars(r), FEW: r.quantised, SPREAD: r.spread}.items():
        if judged:
            if each:
                say(table(POINTS, judged["points"], title="Predicted and measured ITL in ms"))
            rows = [*judged["classes"], judged["summary"]]
            say(table(CLASSES, rows, title=title, bold=[len(rows) - 1]))
            inside = [row.inside for row in judged["points"] if row.inside is not None]
            say(f"{sum(inside)} of {len(inside)} lie in their interval.")
    if each:
        say(table(PAIRS, r.pairs, title="What a graph buys, pair by pair"))
    say(table(BATCHES, r.batches, title="By batch, each source left out of fit and interval"))
    if not each:
        worst = sorted(r.points, key=lambda row: -abs(math.log1p(row.error)))[:5]
        say(table(FARTHEST, worst, title="The 5 farthest off: ITL in ms"))
    say(f"Pictures: {', '.join(map(str, r.pictures))}")
