"""Which test of a run goes to which worker.

In: the ids of the tests, as `pytest -n 3 --dist loadgroup` has them. Out: one unit of work a test,
except where a fixture is dear, where a whole file is one unit. Units of several tests begin (so
pytest-xdist has it), then the tests that take longest, then all others: what begins last is short,
so no worker waits for the other at the end.

The files are named here and not by `pytest.mark.xdist_group`: pytest-xdist 3.8 hands that mark on
in a field that pytest 9.2 no longer reads (pytest-dev/pytest-xdist, issue 1386), and says nothing,
so both workers would build the site.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

COMPILED = "kernels, compiled and disassembled"
BESIDE = "what is held against transformers"  # whose import takes three seconds
TOGETHER = {  # file -> unit of work
    "tests/bench/test_bench.py": BESIDE,
    "tests/bench/test_gate.py": BESIDE,
    "tests/cli/test_commands.py": "the demo",
    "tests/course/test_site.py": "the site",
    "tests/course/test_widgets.py": "the site",
    "tests/cuda/kernels/test_ahead_of_time.py": COMPILED,  # they keep what they have compiled
    "tests/cuda/kernels/test_gemv_dot.py": COMPILED,
    "tests/cuda/kernels/test_prefill_ahead_of_time.py": COMPILED,
    "tests/cuda/test_model.py": BESIDE,
    "tests/model/test_config.py": BESIDE,
    "tests/model/test_tokenizer.py": BESIDE,
    "tests/plots/test_plots.py": "figures, each drawn once",
    "tests/sim/test_model.py": BESIDE,
    "tests/sim/test_speculation.py": "drawn texts with drafts",  # whose probabilities it keeps
    "tests/step/test_kernels.py": BESIDE,
}
LONGEST = (  # tests of ten seconds and more, or the files where they are, the longest first
    "tests/bench/test_stages.py::test_a_rehearsal_runs_its_stages",
    "tests/cuda/kernels/test_interpreter.py",
    "tests/cuda/test_reliability.py::test_thousands_of_steps",
    "tests/course/test_notebooks.py::test_a_notebook_runs",
    "tests/course/test_docs.py::test_every_command_in_a_document_runs",
)


def place_of(nodeid: str) -> int:
    """Where a test stands in LONGEST."""
    return next((i for i, way in enumerate(LONGEST) if nodeid.startswith(way)), len(LONGEST))


def unit_of(nodeid: str) -> str:
    """The name of the unit of work that a test belongs to."""
    return TOGETHER.get(nodeid.partition("::")[0], nodeid)


class TestByTest(LoadScopeScheduling):
    """A worker that is done with a unit takes the next one."""

    __test__ = False

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)
