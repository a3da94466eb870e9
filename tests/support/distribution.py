"""Which test of a run goes to which worker.

In: the ids of the tests, as `pytest -n 2 --dist loadgroup` has them. Out: one unit of work a test,
except where a fixture is dear, where a whole file is one unit.

The files are named here and not by `pytest.mark.xdist_group`: pytest-xdist 3.8 hands that mark on
in a field that pytest 9.2 no longer reads (pytest-dev/pytest-xdist, issue 1386), and says nothing,
so both workers would build the site.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

TOGETHER = (
    "tests/cli/test_commands.py",  # the demo runs once
    "tests/course/test_site.py",  # the site is built once
    "tests/cuda/kernels/test_ahead_of_time.py",  # a kernel is compiled and disassembled once
    "tests/cuda/measure/test_profile.py",  # four engines are profiled once
)


def unit_of(nodeid: str) -> str:
    """The name of the unit of work that a test belongs to."""
    file = nodeid.partition("::")[0]
    return file if file in TOGETHER else nodeid


class TestByTest(LoadScopeScheduling):
    """A worker that is done with a unit takes the next one."""

    __test__ = False

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)
