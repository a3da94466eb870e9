"""`labs watch`: check again at every save."""

from __future__ import annotations

import time
from argparse import Namespace
from pathlib import Path

from rich.console import Console

from labs.runner import show, workspace
from labs.runner.commands import Done, check_mine, chosen_lab
from labs.runner.report import show_report


def run_watch(args: Namespace, console: Console) -> Done:
    """Check at every save until Ctrl-C. Editors save by renaming: a file may be gone a while."""
    progress = workspace.load_progress()
    lab = chosen_lab(args, progress)
    show.refuse_missing_packages(lab)
    workspace.refuse_unready(lab, progress)
    before: list[tuple[int, int] | None] = []
    while True:
        stamps = [_stamp(path) for path in workspace.my_files(lab).values()]
        if stamps != before:
            before = stamps
            try:
                report = check_mine(lab, progress)
                show_report(report, console, whose="mine", every=False, progress=progress)
                console.print("[dim]watching: save to check again, Ctrl-C to stop[/]")
            except (ValueError, OSError) as error:
                console.print(f"[dim]watching: {error}[/]")
        time.sleep(0.3)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino
