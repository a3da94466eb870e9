"""Did a step that claims a CUDA graph run as one? torch.compile leaves graphs out without an error.

In:  how the variant launches, how many launches the profiler counted, what the compiler said.
Out: the words for a row, which are how many launches and the compiler's reasons; "" for a graph.

    with skipped_graphs() as reasons:
        variant.prepare()
    row = replace(row, no_graph=without_graph("full", launches, reasons))

`torch.compile(mode="reduce-overhead")` compiles a step without a graph where it thinks that one
would not be safe, says so in a log that few people read, and goes on: the step is right, and slow.
A baseline that ran like that is no baseline for graphs. No torch: the log is Python's own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mini_engine.step.step_cost import Mode

# Of a call that is one graph: its launch, copies of inputs, the few ops that feed the token back.
# Without graphs, the smallest model that is measured launches more than a hundred.
MOST_LAUNCHES = 16
# Where torch logs a graph that it leaves out, an earlier release and a later one
# (torch/_inductor/cudagraph_utils.py, log_cudagraph_skip_and_bump_counter).
LOGGERS = tuple(
    f"torch._inductor.cudagraph_utils.__{name}" for name in ("perf_hints", "cudagraphs")
)
SKIPPING = "skipping cudagraphs due to "


def without_graph(mode: Mode, launches: int | None, reasons: Sequence[str]) -> str:
    """Nothing for a step of another mode, or with few launches, or where nobody counted them."""
    if mode != "full" or launches is None or launches <= MOST_LAUNCHES:
        return ""
    return "; ".join([f"{launches} launches", *reasons])


@contextmanager
def skipped_graphs() -> Iterator[list[str]]:
    """Fills the list with the reasons that torch.compile gives meanwhile, each once, in a line."""
    heard = _Heard()
    loggers = [logging.getLogger(name) for name in LOGGERS]
    for logger in loggers:
        logger.addHandler(heard)
    try:
        yield heard.reasons
    finally:
        for logger in loggers:
            logger.removeHandler(heard)


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.reasons: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        if SKIPPING in said:
            # "mutated inputs (3 instances). Found from : " goes on with a trace of many lines
            reason = said.split(SKIPPING, 1)[1].split(". Found from", 1)[0].splitlines()[0].strip()
            if reason not in self.reasons:
                self.reasons.append(reason)
