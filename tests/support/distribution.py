"""Which test of a run goes to which worker.

In: the ids of the tests, as `pytest -n 2 --dist loadgroup` has them. Out: one unit of work a test,
except where a fixture is dear, where a whole file is one unit.

The files are named here and not by `pytest.mark.xdist_group`: pytest-xdist 3.8 hands that mark on
in a field that pytest 9.2 no longer reads (pytest-dev/pytest-xdist, issue 1386), and says nothing,
so both workers would build the site.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

COMPILED = "kernels, compiled and disassembled"
TOGETHER = {  # file -> unit of work
    "tests/cli/test_commands.py": "the demo",
    "tests/course/test_site.py": "the site",
    "tests/cuda/kernels/test_ahead_of_time.py": COMPILED,  # they keep what they have compiled
    "tests/cuda/kernels/test_after_the_wait.py": COMPILED,
    "tests/cuda/kernels/test_every_launch.py": "every launch, recorded",
    "tests/measure/test_profile.py": "four engines, profiled",
}


def unit_of(nodeid: str) -> str:
    """The name of the unit of work that a test belongs to."""
    return TOGETHER.get(nodeid.partition("::")[0], nodeid)


class TestByTest(LoadScopeScheduling):
    """A worker that is done with a unit takes the next one."""

    __test__ = False

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)
