"""Running a notebook without a browser: nbclient, in this environment, in an empty folder, where
Python finds the engine and nothing else of the repository.

`fresh` gives a notebook with new outputs, `save` writes it so that two runs of a notebook whose
numbers do not vary give the same file. Cells tagged `varies` (timings) may say something else each
time; `spoken` leaves them out.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from mini_engine.files import write_whole

FOLDER = Path(__file__).parent
ALONE = ("course", "labs", "notebooks", "tests")  # what an installed engine does not bring
TIME_LIMIT_S = 60  # of a cell
LOOK_S = 3  # so often the client looks for a reply that it was not woken for
WIDGET = "application/vnd.jupyter.widget-view+json"
DRAWN = "data-drawn="  # what mini_engine/plots/canvas.py writes into a figure
ADDRESS = re.compile(r"0x[0-9a-f]{6,}|model_id|[0-9a-f]{32}")


def notebooks(chosen: Sequence[str] = ()) -> list[Path]:
    """All notebooks, or those whose names begin with one of these digits."""
    found = sorted(FOLDER.glob("[0-9][0-9]-*.ipynb"))
    known = [path.name[:2] for path in found]
    if strange := [word for word in chosen if word not in known]:
        raise ValueError(f"no notebook {' '.join(strange)}: there are {', '.join(known)}")
    return [path for path in found if not chosen or path.name[:2] in chosen]


class Client(NotebookClient):
    """nbclient, which now and then is not woken when a reply has come, most often that of a first
    cell, and finds it only when its time is over. So its time is short, and is given again.

    nbclient catches Ctrl-C, too, and takes the kernel away from under the cell that waits for it,
    and the kernel hears the same Ctrl-C. Here it is raised where the cell is waited for, and nobody
    else hears it; the kernel goes when this process does."""

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        self.looked: Counter[str] = Counter()
        self.before = signal.getsignal(signal.SIGINT)

    async def async_start_new_kernel(self, **options: Any) -> None:
        if signal.getsignal(signal.SIGINT) is not self.before:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
            signal.signal(signal.SIGINT, self.before)
        await super().async_start_new_kernel(start_new_session=True, **options)

    async def _async_handle_timeout(
        self, timeout: int, cell: NotebookNode | None = None
    ) -> dict[str, Any] | None:
        name = cell.id if cell is not None else ""
        self.looked[name] += 1
        if self.looked[name] * timeout < TIME_LIMIT_S:
            return None  # nothing has come yet: wait on
        return await super()._async_handle_timeout(TIME_LIMIT_S, cell)


def fresh(path: Path) -> NotebookNode:
    """Run every cell. Raises `nbclient.exceptions.CellExecutionError`, or TimeoutError."""
    book = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as here, TemporaryDirectory() as packages:
        for name in ALONE:
            (Path(packages) / f"{name}.py").write_text(f"raise ImportError('{name}: no package')")
        (Path(packages) / "mini_engine").symlink_to(FOLDER.parent / "mini_engine")
        os.environ["PYTHONPATH"] = packages  # of the kernel that is about to start
        client = Client(
            book,
            timeout=LOOK_S,
            kernel_name="python3",
            resources={"metadata": {"path": here}},
            coalesce_streams=True,  # as one text, however it arrived
        )
        try:
            client.execute()
        except KeyboardInterrupt:
            client.shutdown_kernel = "immediate"  # or it tells at length that nobody listens
            raise
    return book


def save(book: NotebookNode, path: Path) -> None:
    """Write it without what differs from run to run."""
    book.metadata = NotebookNode(
        kernelspec={"display_name": "Python 3", "language": "python", "name": "python3"},
        language_info={"name": "python"},
    )
    for index, cell in enumerate(book.cells):
        cell.id = f"cell-{index:02d}"
        cell.metadata = NotebookNode({k: v for k, v in cell.metadata.items() if k == "tags"})
        if cell.cell_type == "code":  # a slider has a random name, and nothing behind it once saved
            cell.outputs = [out for out in cell.outputs if WIDGET not in out.get("data", {})]
    nbformat.validate(book)
    write_whole(path, nbformat.writes(book) + "\n")


def drawn(book: NotebookNode) -> Iterator[tuple[int, str]]:
    """(cell, SVG or a PNG in base64) of every figure of the code cells that do not vary."""
    for index, cell in enumerate(book.cells):
        if cell.cell_type == "code" and "varies" not in cell.metadata.get("tags", []):
            for output in cell.outputs:
                data = output.get("data", {})
                if picture := data.get("image/png"):
                    yield index, picture
                elif DRAWN in data.get("image/svg+xml", ""):
                    yield index, data["image/svg+xml"]


def spoken(book: NotebookNode) -> Iterator[tuple[int, str]]:
    """(cell, what it printed, drew on lanes or showed as text) of the cells that do not vary."""
    for index, cell in enumerate(book.cells):
        if cell.cell_type != "code" or "varies" in cell.metadata.get("tags", []):
            continue
        said = []
        for output in cell.outputs:
            if output.get("name") == "stderr":  # warnings of a machine, not words of the notebook
                continue
            data = output.get("data", {})
            text = output.get("text") or data.get("image/svg+xml") or data.get("text/plain", "")
            if DRAWN not in text and not ADDRESS.search(text):
                said.append(text)
        yield index, "".join(said)
