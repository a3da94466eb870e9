"""Many fleets on one trace, on all cores or on a cluster: a CSV file, a row for each design as it
is done. A sweep that was cut goes on where it stopped, and ends with the same table. A worker that
dies takes one cell with it: its row says so."""

import csv
import hashlib
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from itertools import combinations_with_replacement, groupby
from pathlib import Path
from typing import Any

from mini_engine.files import write_whole
from mini_engine.fleet.fleet import Design, FleetReport, run
from mini_engine.serving.request_trace import Columns, read_trace, with_shared_prefix

Row = dict[str, str]
Do = Callable[[Design], Row]
KEYS = ("cards", "prefill", "router", "mode")  # of a design, in which those of a sweep differ
FIGURES = tuple(one.name for one in fields(FleetReport) if one.name != "served_by")
HEAD, DIED = ("sweep", *KEYS, *FIGURES, "error"), "its worker died"


@dataclass(frozen=True)
class Sweep:
    trace: str
    designs: tuple[Design, ...]
    columns: Columns | None = None
    shared: tuple[int, float, int] = (0, 0.0, 1)  # tokens, share, prefixes (with_shared_prefix)

    @property
    def name(self) -> str:
        """What all cells have in common, in few letters."""
        same = {replace(d, cards=("",), prefill=0, router="least", mode="") for d in self.designs}
        said = repr((sorted(map(repr, same)), self.columns, self.shared)).encode()
        return hashlib.sha256(Path(self.trace).read_bytes() + said).hexdigest()[:12]


def cards_of(words: str) -> tuple[str, ...]:
    """`2xh100+1xl40s` as the cards of three replicas. Raises ValueError for other words."""
    found: list[str] = []
    for part in words.split("+"):
        times = re.fullmatch(r"(\d+)x(.+)", part)
        if not times or not 1 <= int(times[1]) <= 10_000:
            raise ValueError(f"{part!r:.40} is no NxCARD, as in 2xh100+1xl40s")
        found += [times[2]] * int(times[1])
    return tuple(found)


def cheapest(rows: Iterable[dict[str, Any]], share: float) -> dict[str, Any] | None:
    """Of those that keep this share of requests content; of equal ones the lowest p99 of TTFT."""
    good = [row for row in rows if not row["error"] and row["content_share"] >= share]
    return min(good, key=lambda r: (r["cost_per_hour"], r["ttft_p99_us"] or math.inf), default=None)


def designs_up_to(
    base: Design, cards: Sequence[str], most: int, routers: Sequence[str], modes: Sequence[str]
) -> tuple[Design, ...]:
    """Every set of up to `most` of these cards, behind every router, in every mode."""
    return tuple(
        replace(base, cards=chosen, router=router, mode=mode)
        for number in range(1, most + 1)
        for chosen in combinations_with_replacement(cards, number)
        for router in (routers if number > 1 else routers[:1])
        for mode in modes
    )


def cell_of(design: Design) -> Row:
    cards = "+".join(f"{len([*same])}x{card}" for card, same in groupby(design.cards))
    return dict(zip(KEYS, (cards, str(design.prefill), design.router, design.mode), strict=True))


@cache  # in each worker
def requests_of(trace: str, columns: Columns | None, shared: tuple[int, float, int]) -> Any:
    read, (tokens, share, prefixes) = read_trace(trace, columns), shared
    return [*with_shared_prefix(read, tokens, share, prefixes=prefixes)] if tokens else read


def row_of(sweep: Sweep, design: Design) -> Row:
    """Serve one design. A model that does not fit the card is a row with an error."""
    try:
        report = run(design, requests_of(sweep.trace, sweep.columns, sweep.shared))
    except ValueError as error:
        return {**cell_of(design), "error": str(error)}
    figures = {name: getattr(report, name) for name in FIGURES}
    return {**cell_of(design), **{k: "" if v is None else repr(v) for k, v in figures.items()}}


def in_processes(do: Do, designs: Sequence[Design], jobs: int) -> Iterator[Row]:
    """By joblib. When a worker dies, what may have been its work is done again, each alone."""
    from joblib import Parallel, delayed

    left = {key_of(cell_of(design)): design for design in designs}
    how = {"n_jobs": jobs, "return_as": "generator_unordered", "pre_dispatch": "n_jobs"}
    while left:
        try:
            for row in Parallel(**how, batch_size=1)(map(delayed(do), [*left.values()])):
                del left[key_of(row)]
                yield row
        except BrokenExecutor:
            for key in [*left][: 2 * jobs]:
                design = left.pop(key)
                try:
                    yield from Parallel(n_jobs=2)([delayed(do)(design)])
                except BrokenExecutor:
                    yield {**cell_of(design), "error": DIED}


def on_ray(do: Do, designs: Sequence[Design], address: str | None) -> Iterator[Row]:
    """By a Ray cluster: that of an address, or one of this machine's own."""
    import ray

    ray.init(address, ignore_reinit_error=True, log_to_driver=False)
    remote = ray.remote(max_retries=0)(lambda design: do(design))
    left = {remote.remote(design): design for design in designs}
    while left:
        (done,), _ = ray.wait([*left], num_returns=1)
        design = left.pop(done)
        try:
            yield ray.get(done)
        except ray.exceptions.WorkerCrashedError:
            yield {**cell_of(design), "error": DIED}


def key_of(row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in KEYS)


def sweep_to(
    path: Path, sweep: Sweep, *, on: str = "processes", jobs: int = 1,
    tell: Callable[[str], object] = lambda _: None, do: Callable[[Sweep, Design], Row] = row_of,
) -> list[Row]:  # fmt: skip
    """Fill the table, and return its rows in order. `on`: "processes", "ray", or the address of a
    Ray cluster. Raises ValueError where the file holds another table."""
    name, order = sweep.name, {key_of(cell_of(design)): design for design in sweep.designs}
    rows = {key_of(row): row for row in rows_of(path, name) if not row["error"]}
    left, work = [design for key, design in order.items() if key not in rows], partial(do, sweep)
    found: Iterable[Row] = map(work, left)  # here
    if on != "processes":
        found = on_ray(work, left, None if on == "ray" else on)
    elif jobs > 1:
        found = in_processes(work, left, jobs)
    write_whole(path, text_of(rows.values(), HEAD))
    with path.open("a") as file:
        for row in found:
            rows[key_of(row)] = row = {**dict.fromkeys(HEAD, ""), **row, "sweep": name}
            file.write(text_of([row]))
            file.flush()
            tell(f"{len(rows)} of {len(order)} served")
    write_whole(path, text_of((rows[key] for key in order), HEAD))
    return [rows[key] for key in order]


def rows_of(path: Path, name: str) -> list[Row]:
    """The whole rows of a table that may have been cut anywhere; none where there is no file."""
    text = path.read_text() if path.is_file() else ""
    rows = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
    found = list(rows)
    if rows.fieldnames and ((*rows.fieldnames,) != HEAD or any(r["sweep"] != name for r in found)):
        raise ValueError(f"{path} holds another table: name a new file, or remove it")
    return found


def text_of(rows: Iterable[Row], head: Sequence[str] = ()) -> str:
    out, lines = io.StringIO(), [[row[name] for name in HEAD] for row in rows]
    csv.writer(out, lineterminator="\n").writerows([head, *lines] if head else lines)
    return out.getvalue()
