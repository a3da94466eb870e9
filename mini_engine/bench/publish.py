"""From a run's folder into the project: its evidence, and the tables that it fills in.

In:  the folder of a run on a GPU, and the root of the project. Out: copies under
     course/measurements, named after the card, and the last column of three tables: the steps in
     README.md, the bars in course/measurements/README.md, the kernels in mini_engine/README.md. No
     torch.

    publish(Path("out/gpu"), root, "h200")
    filled(root)                        # {path: its text as the evidence has it}; a test compares

A table says what the files under course/measurements say, and "not yet measured" where none says
anything. What the emulator wrote is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mini_engine.bench.bar_judges import NOT_MEASURED
from mini_engine.bench.bar_points import bench_line
from mini_engine.bench.bars import BARS, PARTLY, Result, judged
from mini_engine.bench.evidence import Measurement, load_evidence, write_measurement
from mini_engine.bench.first_run import BENCH, CHAIN, CONTEXT, MODELS, PREFILL
from mini_engine.files import write_whole

EVIDENCE = "course/measurements"
FRONT_PAGE, BARS_PAGE, KERNELS_PAGE = "README.md", f"{EVIDENCE}/README.md", "mini_engine/README.md"
STEPS = {
    "Qwen3-1.7B": "itl-qwen3-1.7b",
    "Qwen3-0.6B": "itl-qwen3-0.6b",
    "Llama-3.2-1B shape": "itl-llama-3.2-1b",
}  # row of the front page -> the bar that it is about
FILES = ("environment.json", "calibration.json", BENCH, CHAIN, PREFILL)
NOT_YET = "not yet measured"


def publish(folder: Path, root: Path, card: str) -> list[Path]:
    """What was written. Raises ValueError for a folder without evidence, before anything is."""
    found = {name: load_evidence(folder / name) for name in FILES if (folder / name).exists()}
    if not found:
        raise ValueError(f"{folder}: none of {', '.join(FILES)} in it: run the stages first")
    if not (root / BARS_PAGE).exists():
        raise ValueError(f"no {BARS_PAGE} here: run it from the root of the repository")
    written = []
    for name, measurement in found.items():
        written.append(root / EVIDENCE / f"{Path(name).stem}-{card}.json")
        write_measurement(written[-1], measurement)
    for path, text in filled(root).items():
        if path.read_text(encoding="utf-8") != text:
            write_whole(path, text)
            written.append(path)
    return written


def filled(root: Path) -> dict[Path, str]:
    """The pages, with what the evidence says in their tables."""
    files = sorted((root / EVIDENCE).glob("*.json"))
    evidence = {path.name: load_evidence(path) for path in files}
    results = _results(evidence)
    cells = {
        FRONT_PAGE: _step_cells(results),
        BARS_PAGE: _bar_cells(results),
        KERNELS_PAGE: _kernel_cells(evidence),
    }
    return {root / page: _with_cells((root / page).read_text(encoding="utf-8"), of_page)
            for page, of_page in cells.items()}  # fmt: skip


def _with_cells(text: str, cells: Mapping[str, str]) -> str:
    """`text`, in which a table's row that begins with a key ends with its cell."""
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        for key, cell in cells.items():
            if line.startswith(f"| {key} "):
                first = line.rstrip().removesuffix("|").rpartition("|")[0]
                lines[number] = f"{first}| {cell} |\n"
    return "".join(lines)


def _results(evidence: Mapping[str, Measurement]) -> dict[str, tuple[Result, str]]:
    """By a bar's name: what the newest file that knows something of it says, and that file. A part
    of a bar takes no whole one's place."""
    found: dict[str, tuple[Result, str]] = {}
    benches = [(m.date, name, m) for name, m in evidence.items() if m.kind == "bench"]
    for _date, name, measurement in sorted(benches, key=lambda one: one[:2]):
        for result in judged(measurement, bench_line(f"{EVIDENCE}/{name}")):
            whole = {one.bar.name for one, _ in found.values() if one.status != PARTLY}
            part = result.status == PARTLY and result.bar.name in whole
            if result.status != NOT_MEASURED and not part:
                found[result.bar.name] = result, name
    return found


def _step_cells(results: Mapping[str, tuple[Result, str]]) -> dict[str, str]:
    """ITL in ms, by the model's name on the front page."""
    cells = dict.fromkeys(STEPS, NOT_YET)
    for row, bar in STEPS.items():
        result, _ = results.get(bar, (None, ""))
        if result is not None and result.value is not None:
            cells[row] = f"{result.value / 1e3:.2f} ms, {result.status}"
    return cells


def _bar_cells(results: Mapping[str, tuple[Result, str]]) -> dict[str, str]:
    """By what a bar says."""
    cells = {bar.says: NOT_YET for bar in BARS}
    for result, name in results.values():
        cells[result.bar.says] = f"{result.status}: {result.why} ({name})"
    return cells


def _kernel_cells(evidence: Mapping[str, Measurement]) -> dict[str, str]:
    """By kernel: what one launch takes alone at its place, in the shape of the page's table."""
    links = [link for m in evidence.values() if m.kind == "chain" for link in m.figures["links"]]
    cells: dict[str, str] = {}
    for link in links:
        if (link["shape"], link["context"]) == (MODELS[0], CONTEXT):
            us, gb_s = link["alone"]["median"], link["gb_s"]
            cells[link["kernel"]] = f"{us:.2f} ({gb_s:,.0f} GB/s)"
    return cells
