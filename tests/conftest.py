"""Hypothesis profiles, and the word on GPU checks at the end of a run."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

for _name, _examples in (("default", 100), ("slow", 1000)):
    settings.register_profile(
        _name,
        max_examples=_examples,
        deadline=None,  # a shared machine is slow at times; speed is the business of `make bench`
        derandomize=_name == "default",  # the same examples every time: a red run can be repeated
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Which GPU checks were skipped, and how to run them."""
    skipped = [r for r in terminalreporter.stats.get("skipped", []) if "gpu" in r.keywords]
    ran = [
        r
        for outcome in ("passed", "failed")
        for r in terminalreporter.stats.get(outcome, [])
        if "gpu" in r.keywords
    ]
    if skipped:
        files = Counter(report.nodeid.partition("::")[0] for report in skipped)
        terminalreporter.write_line(f"GPU checks skipped, no NVIDIA GPU here ({len(skipped)}):")
        for file, checks in sorted(files.items()):
            terminalreporter.write_line(f"  {file}: {checks}")
        terminalreporter.write_line("Run them on a machine with a GPU: make test ARGS='-m gpu'")
    elif not ran:
        terminalreporter.write_line("GPU checks: none among these tests")
