"""The process of one engine: a job on standard input, an answer in the file that argv names.

    python -m mini_engine.bench.others.child ANSWER.json < job.json

The answer is an object: {"not_run": why}, or version, seconds to start, and the laps. Standard
output belongs to the engine, which prints what it likes. Afterwards the process leaves at once:
whoever started it ends the engine's own processes.
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import importlib.util
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from mini_engine.bench.others import EAGER, kind_of
from mini_engine.bench.others.protocol import Job, Session, gaps, prompts

OTHER_INTERFACE = (TypeError, AttributeError, ImportError, KeyError)


def main() -> None:
    """Answer, whatever happens; the exit code is 0 where there is an answer."""
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    Path(sys.argv[1]).write_text(json.dumps(answer(Job(**json.load(sys.stdin)))), "utf-8")
    sys.stdout.flush()
    os._exit(0)  # not through the engine's own clean-up, which may hang


def end_with(asker: int) -> None:
    """End this process group when the process that asked is gone: killed, or its terminal closed.
    Otherwise the engine would go on holding the GPU's memory."""
    while os.getppid() == asker:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


def answer(job: Job) -> dict[str, Any]:
    """Load, warm up, measure. What cannot be measured is told in one line."""
    kind = kind_of(job.engine)
    if not_installed(job.engine):
        return {"not_run": f"{kind.package} is not installed: {kind.install}"}
    try:
        began = time.perf_counter()
        adapter = importlib.import_module(f"mini_engine.bench.others.{kind.adapter}")
        session: Session = adapter.start(job)
        started = time.perf_counter() - began
        session.lap(prompts(job, 0))  # warms up: what is compiled, captured or allocated late
        laps: list[dict[str, Any]] = []
        first: list[list[int]] = []
        gc.collect()
        gc.disable()
        for number in range(1, job.laps + 1):
            lap = session.lap(prompts(job, number))
            counts = {len(each) for each in lap.tokens}
            if counts != {job.tokens}:
                raise ValueError(f"requests got {sorted(counts)} tokens, asked for {job.tokens}")
            gaps_us, tokens_a_piece = gaps(lap.times)
            laps.append({"gaps_us": gaps_us, "tokens_a_piece": tokens_a_piece})
            first = first or lap.tokens
        return {"version": session.version, "start_s": started, "laps": laps, "tokens": first}
    except Exception as error:
        return {"not_run": told(job.engine, error)}
    finally:
        gc.enable()


def not_installed(name: str) -> bool:
    """Whether the engine cannot even be imported."""
    package = kind_of(name).package
    return bool(package) and importlib.util.find_spec(package) is None


def version_of(name: str) -> str:
    """Of the distribution, "unknown" where a folder is imported that pip has not seen."""
    try:
        return importlib.metadata.version(name.removesuffix(EAGER))
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def told(name: str, error: Exception) -> str:
    """An error in one line; where the interface may be another one, with the versions it fits."""
    lines = str(error).strip().splitlines() or [""]
    line = f"{'' if type(error) is ValueError else f'{type(error).__name__}: '}{lines[0]}"[:300]
    if not isinstance(error, OTHER_INTERFACE):
        return line
    return (
        f"{name} {version_of(name)} has another interface than {kind_of(name).written_for}, "
        f"for which this was written, or is not whole ({line})"
    )


if __name__ == "__main__":
    main()
