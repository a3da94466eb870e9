"""How a bar is judged: rows of a benchmark in, a verdict out.

In:  the results of a file (no failed gates), and the names of the card and host that predicted.
Out: a status, a value in the unit of the bar, and why, in a line. No torch.

A verdict is over what is there: `bars.py` knows what is missing. The whole 95% interval has to lie
on the good side of a bar; one that lies across it is a miss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mini_engine.bench.bar_points import BASELINES, CONTEXT, in_few_bits
from mini_engine.bench.evidence import CALIBRATED
from mini_engine.records.rows import Row

REACHED, MISSED, NOT_MEASURED = "reached", "missed", "not measured"
SHAPES = ("qwen3-0.6b", "qwen3-1.7b", "llama-3.2-1b", "qwen2.5-1.5b")
MAX_CONTEXT = CONTEXT
WITHIN_PERCENT = 10.0

Judged = tuple[str, float | None, str]  # status, value, why
PredictedFor = tuple[str, str]  # the names of card and host
Judge = Callable[[Sequence[Row], PredictedFor], Judged]


def itl(shape: str, bar_us: float, stretch_us: float) -> Judge:
    def judge(steps: Sequence[Row], _on: PredictedFor) -> Judged:
        best = _best_at(steps, shape)
        if best is None:
            return NOT_MEASURED, None, f"no variant of ours at batch 1 and context <= {MAX_CONTEXT}"
        at = f"{best.variant} at context {best.context}: {_told(best)}"
        if best.itl.high <= stretch_us:
            return REACHED, best.itl_us, f"{at}; so is the stretch of {stretch_us:,.0f} µs"
        return (REACHED if best.itl.high <= bar_us else MISSED), best.itl_us, at

    return judge


def times(baseline: str, bar: float) -> Judge:
    def judge(steps: Sequence[Row], _on: PredictedFor) -> Judged:
        """By the shape with the smallest factor, at the worse ends of both intervals."""
        factors, used = [], []
        for shape in SHAPES:
            ours = _best_at(steps, shape)
            theirs = [s for s in steps if ours and s.variant == baseline and s.point == ours.point]
            if ours and theirs:
                least = theirs[0].itl.low / ours.itl.high
                factors.append((least, theirs[0].itl_us / ours.itl_us, shape, ours.variant))
                used += [theirs[0], ours]
        if not factors:
            return NOT_MEASURED, None, f"no shape with {baseline} and a variant of ours at batch 1"
        least, value, shape, variant = min(factors)
        of = f"{shape}, {variant}: {value:.2f}× (at least {least:.2f}×), "
        of += f"the least of {len(factors)} shapes{_without_graphs(used)}"
        return (REACHED if least >= bar else MISSED), value, of

    return judge


def never_slower(steps: Sequence[Row], _on: PredictedFor) -> Judged:
    """Every shape and batch, at the largest context up to MAX_CONTEXT. A miss is one point where
    even our best is slower than a baseline, beyond both intervals."""
    held: list[str] = []
    used: list[Row] = []
    worst = 0.0, ""
    for shape, batch in sorted({(s.shape, s.batch) for s in steps if s.shape in SHAPES}):
        ours = _best_at(steps, shape, batch)
        theirs = [s for s in steps if ours and s.variant in BASELINES and s.point == ours.point]
        if ours is None or not theirs:
            continue
        used += [ours, *theirs]
        fastest = min(theirs, key=lambda s: s.itl_us)
        at = f"{shape}, batch {batch}: {ours.variant} {_told(ours)}, "
        at += f"{fastest.variant} {_told(fastest)}"
        worst = max(worst, (ours.itl_us / fastest.itl_us, at))
        if ours.itl.low > fastest.itl.high:
            return MISSED, ours.itl_us / fastest.itl_us, at
        held.append(f"{shape} {batch}")
    if not held:
        return NOT_MEASURED, None, "no point with a baseline and a variant of ours"
    why = f"at {', '.join(held)}; closest: {worst[1]}{_without_graphs(used)}"
    return REACHED, worst[0], why


def fewer_bytes(quant: str, bar: float) -> Judge:
    def judge(steps: Sequence[Row], _on: PredictedFor) -> Judged:
        """By the shape with the smallest share, at the worse ends of both intervals. The share of
        what the bytes allow: (times as fast - 1) / (times fewer bytes - 1)."""
        shares = []
        for step in steps:
            plain = [
                s for s in steps
                if s.point == step.point and f"{s.variant}-{quant}" == step.variant
            ]  # fmt: skip
            if step.batch != 1 or not plain:
                continue
            fewer = plain[0].bytes_to_move / step.bytes_to_move
            least = (plain[0].itl.low / step.itl.high - 1) / (fewer - 1)
            shares.append((least, (plain[0].itl_us / step.itl_us - 1) / (fewer - 1), fewer, step))
        if not shares:
            return NOT_MEASURED, None, f"no shape with an {quant} arm and its plain one at batch 1"
        least, value, fewer, step = min(shares, key=lambda share: share[0])
        of = f"{step.shape}, {step.variant}: {_told(step)}, {value:.2f} of what {fewer:.2f} times "
        of += f"fewer bytes allow (at least {least:.2f})"
        return (REACHED if least >= bar else MISSED), value, of

    return judge


def prediction(steps: Sequence[Row], on: PredictedFor) -> Judged:
    """By card, host and each arm's engine, PDL included. A calibration fits launches, gaps and
    bandwidth but no ITL, so every ITL is held out. Left out: null, which is the anchor again, and
    the trials of a kernel's alternative, of which the simulator knows nothing."""
    guessed = [name for name in on if not name.endswith(CALIBRATED)]
    if guessed:
        why = f"predicted with {' and '.join(guessed)}, not measured on this machine: calibrate, "
        return NOT_MEASURED, None, why + "then --spec and --host"
    off = [(abs(100 * (s.predicted_us / s.itl_us - 1)), s) for s in steps if s.variant != "null"]
    if not off:
        return NOT_MEASURED, None, "no arm has a result"
    worst, step = max(off, key=lambda pair: pair[0])
    inside = sum(percent <= WITHIN_PERCENT for percent, _ in off)
    at = (
        f"{inside} of {len(off)} points within {WITHIN_PERCENT:.0f}%; worst {step.variant}, "
        f"{step.shape}, batch {step.batch}, context {step.context:,}: {worst:.1f}% off"
    )
    return (REACHED if worst <= WITHIN_PERCENT else MISSED), worst, at


def _best_at(steps: Sequence[Row], shape: str, batch: int = 1) -> Row | None:
    """The fastest variant of ours at the largest context up to MAX_CONTEXT."""
    ours = [
        s for s in steps
        if (s.shape, s.batch) == (shape, batch)
        and s.context <= MAX_CONTEXT and s.variant not in (*BASELINES, "null")
        and not in_few_bits(s.variant)
    ]  # fmt: skip
    if not ours:
        return None
    context = max(s.context for s in ours)
    return min((s for s in ours if s.context == context), key=lambda s: s.itl_us)


def _told(step: Row) -> str:
    return f"{step.itl_us:,.1f} µs ({step.itl.low:,.1f} to {step.itl.high:,.1f})"


def _without_graphs(used: Sequence[Row]) -> str:
    """What makes a comparison worth less: variants that claim a graph and ran without one."""
    counts: dict[str, list[int]] = {}
    for step in used:
        if step.no_graph:
            counts.setdefault(step.variant, []).append(step.launches_a_call or 0)
    told = ""
    for variant, n in counts.items():
        launches = f"{min(n)} to {max(n)}" if min(n) < max(n) else f"{n[0]}"
        told += f"; {variant} ran without a graph: {launches} launches"
    return told
