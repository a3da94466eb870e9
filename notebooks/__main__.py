"""Run the notebooks again and keep their outputs: `python -m notebooks [NN …]`.

In:  two digits of each notebook, none for all. Out: the same files with fresh outputs, without the
times and identifiers that differ from run to run. A cell that fails stops it, with what it said.
"""

from __future__ import annotations

import sys

from rich.console import Console

from notebooks.running import FOLDER, fresh, notebooks, save


def main(chosen: list[str]) -> int:
    """Returns the exit code."""
    console = Console(highlight=False)
    for path in notebooks(chosen):
        with console.status(f"{path.name}: running"):
            save(fresh(path), path)
        console.print(f"{path.relative_to(FOLDER.parent)}: outputs are fresh")
    console.print("\nmake jupyter opens them.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
