"""A variant that claims a graph and ran without one says so, in its row and wherever it is told."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mini_engine.bench.bars import judged
from mini_engine.bench.no_graph import (
    LOGGERS,
    MOST_LAUNCHES,
    SKIPPING,
    skipped_graphs,
    without_graph,
)
from mini_engine.bench.table import joined, markdown
from mini_engine.cli import bench as command
from mini_engine.records.rows import Row
from tests.support.bench_rows import COPY_GB_S, made_up, made_up_row

WHY = "259 launches; mutated inputs (3 instances)"
BASELINE = "compile-reduce-overhead"


def ran_without(one: dict[str, Any], launches: int = 259) -> dict[str, Any]:
    return {**one, "launches_a_call": launches, "no_graph": WHY.replace("259", str(launches))}


def test_only_a_step_that_claims_one_graph_and_launches_more_is_marked() -> None:
    reasons = ["mutated inputs (3 instances)"]
    assert without_graph("full", 259, reasons) == WHY
    assert without_graph("full", MOST_LAUNCHES + 1, []) == f"{MOST_LAUNCHES + 1} launches"
    assert without_graph("full", MOST_LAUNCHES, reasons) == ""
    assert without_graph("full", None, reasons) == "", "without a GPU nobody counts"
    assert without_graph("eager", 259, []) == without_graph("piecewise", 259, []) == ""


def test_what_torch_compile_says_of_a_graph_that_it_leaves_out_is_heard() -> None:
    """Whichever of its two names the log has."""
    hints, graphs = (logging.getLogger(name) for name in LOGGERS)
    with skipped_graphs() as reasons:
        for _ in range(2):
            hints.warning(SKIPPING + "mutated inputs (1 instances). Found from : \n File x\n y")
            graphs.warning("%scpu device (%s)", SKIPPING, "arg0")
        graphs.warning("slow")
    assert reasons == ["mutated inputs (1 instances)", "cpu device (arg0)"]
    graphs.warning(SKIPPING + "a reason that comes too late")
    assert len(reasons) == 2


def test_the_installed_torch_logs_it_under_one_of_these_names() -> None:
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        pytest.skip("torch is not installed")
    text = (Path(torch.origin).parent / "_inductor/cudagraph_utils.py").read_text()
    assert f'return f"{SKIPPING}{{reason}}"' in text
    body = text.split("def log_cudagraph_skip_and_bump_counter", 1)[1].split("\n\n\n", 1)[0]
    (logger,) = re.findall(r"(\w+)\.warning\(msg\)", body)
    (artifact,) = re.findall(
        rf'{logger} = torch._logging.getArtifactLogger\(__name__, "(\w+)"', text
    )
    assert f"torch._inductor.cudagraph_utils.__{artifact}" in LOGGERS


def test_a_file_keeps_the_mark_and_a_process_with_a_graph_does_not_take_it_away() -> None:
    with_graph = Row.from_json(made_up_row(BASELINE, 1))
    marked = Row.from_json(ran_without(made_up_row(BASELINE, 1)))
    assert marked.no_graph == WHY
    assert Row.from_json(marked.as_json()) == marked
    assert "no_graph" not in with_graph.as_json()
    for old, new in ((marked, with_graph), (with_graph, marked)):
        assert joined(old, new, COPY_GB_S).no_graph == WHY
    assert joined(with_graph, replace(with_graph), COPY_GB_S).no_graph == ""


def test_the_printed_line_and_both_tables_say_so() -> None:
    rows = [made_up_row("graph-5", 1), ran_without(made_up_row(BASELINE, 1))]
    fine, marked = map(Row.from_json, rows)
    assert command._told(marked).endswith(f"µs a step; it ran without a graph: {WHY}")
    assert command._told(fine).endswith("µs a step")
    assert command._cells(marked)[0] == f"{BASELINE} (no graph)"
    assert command._cells(fine)[0] == "graph-5"
    text = markdown(made_up(rows, emulated=False))
    assert f"| {BASELINE} **(no graph)** |" in text
    assert f"\n- {BASELINE} ran without a graph: {WHY}\n" in text
    assert "graph-5 **" not in text


def test_a_bar_that_a_baseline_without_its_graph_made_easy_says_so() -> None:
    def whys(rows: list[dict[str, Any]]) -> dict[str, str]:
        return {r.bar.name: f"{r.status}: {r.why}" for r in judged(made_up(rows, emulated=False))}

    ours = made_up_row("graph-5", 1, us=500.0)
    theirs = [made_up_row(BASELINE, 1, us=1000.0), made_up_row("hf-eager", 1, us=900.0)]
    assert "without a graph" not in str(whys([ours, *theirs]))
    found = whys([ours, ran_without(theirs[0]), theirs[1]])
    said = f"; {BASELINE} ran without a graph: 259 launches"
    assert found["times-compile"].startswith("partly measured: ")
    assert said in found["times-compile"]
    assert said in found["never-slower"], "also where another baseline was the fastest"
    assert "without a graph" not in found["times-transformers"]
    other = ran_without(made_up_row(BASELINE, 1, shape="qwen3-1.7b", us=1000.0), 301)
    more = [made_up_row("graph-5", 1, shape="qwen3-1.7b", us=500.0), other]
    assert (
        "graph: 259 to 301 launches" in whys([ours, ran_without(theirs[0]), *more])["times-compile"]
    )
