"""Run the notebooks again and keep their outputs: `python -m notebooks [NN …]`.

In:  two digits of each notebook, none for all. Out: the same files with fresh outputs, without the
times and identifiers that differ from run to run. A cell that fails stops it, with what it said.
"""

from __future__ import annotations

import sys

from mini_engine.cli.ending import CheckFailed, guarded


def main() -> int:
    """Returns the exit code."""
    import argparse

    words = argparse.ArgumentParser(prog="python -m notebooks", description=__doc__)
    words.formatter_class = argparse.RawDescriptionHelpFormatter
    words.add_argument("chosen", nargs="*", metavar="NN", help="two digits (default: all)")
    chosen = words.parse_args().chosen
    from nbclient.exceptions import CellExecutionError
    from rich.console import Console

    from notebooks.running import FOLDER, fresh, notebooks, save

    console = Console(highlight=False)
    for path in notebooks(chosen):
        try:
            with console.status(f"{path.name}: running"):
                save(fresh(path), path)
        except CellExecutionError as error:
            print(error, file=sys.stderr)  # the cell, and what Python said about it
            raise CheckFailed(f"{path.name}: a cell failed: {error.ename}") from None
        console.print(f"{path.relative_to(FOLDER.parent)}: outputs are fresh")
    console.print("\nmake notebooks opens them.")
    return 0


if __name__ == "__main__":
    sys.exit(guarded("notebooks", main))
