"""What the documents say is so: commands run, shown output is real, links lead somewhere."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from mini_engine.config import named_shape
from mini_engine.hardware import load_spec
from mini_engine.oplists import StepShape, step_parts
from tests.documents import LINK, ROOT, anchors, fences, prose, run, run_command

DOCUMENTS = [
    ROOT / name
    for name in (
        "README.md",
        "CONTRIBUTING.md",
        "course/README.md",
        "course/measurements/README.md",
        "mini_engine/README.md",
    )
]
PATH = re.compile(r"`((?:mini_engine|tests|course|labs|notebooks)/[\w./*-]+)`")
# These would run this suite inside itself, or for minutes: that they are well-formed is checked
# with `make --dry-run`, and `make test` is what runs you.
DRY = ("make test", "make slow", "make bench", "make format")


def commands() -> list[tuple[str, str]]:
    """(document, command) for every line of every `sh` block."""
    found = [
        (document.relative_to(ROOT).as_posix(), command)
        for document in DOCUMENTS
        for fence in fences(document.read_text())
        if fence.info == "sh"
        for command in fence.commands
    ]
    assert len(found) >= 8
    return found


@pytest.mark.parametrize(("document", "command"), commands(), ids=lambda value: value[:60])
def test_every_command_in_the_documents_runs(document: str, command: str, tmp_path: Path) -> None:
    if command.startswith(DRY):
        command = command.replace("make", "make --dry-run", 1)
    elif command == "make demo":  # what the target runs, without setting up a second environment
        command = "python -m mini_engine demo"
    done = run_command(command, tmp_path)
    assert done.returncode == 0, f"{document}: {command}\n{done.stdout}\n{done.stderr}"


def test_the_readme_shows_what_the_demo_prints(tmp_path: Path) -> None:
    """Fails when the demo says something else now: paste its output into README.md again."""
    blocks = {fence.info: fence.body for fence in fences((ROOT / "README.md").read_text())}
    done = run([sys.executable, "-m", "mini_engine", "demo"], tmp_path)
    assert done.returncode == 0, done.stderr
    printed = [line.rstrip() for line in done.stdout.strip("\n").splitlines()]
    shown = [line.rstrip() for line in blocks["text"].strip("\n").splitlines()]
    assert shown == printed
    for name in ("timeline.png", "crossover.png"):
        fresh, kept = imread(tmp_path / "out" / name), imread(ROOT / "course/figures" / name)
        assert fresh.shape == kept.shape, f"course/figures/{name} is stale: make figures"
        # versions of matplotlib draw letters a little differently; boxes must stand where they did
        assert np.abs(fresh - kept).mean() < 0.01, f"course/figures/{name} is stale: make figures"


def test_the_table_of_kernels_is_what_the_op_list_says() -> None:
    spec = load_spec("h200")
    parts = step_parts(named_shape("qwen3-0.6b"), StepShape.decode(1, 512), "fused5")
    text = (ROOT / "mini_engine/README.md").read_text()
    for op in (*parts.layer, parts.tail[0]):
        floor_us = op.bytes / spec.copy_bandwidth_gb_s / 1e3
        row = re.search(rf"^\| {op.name}\b[^|]*\| ([\d,]+) \| ([\d.]+) \|", text, re.MULTILINE)
        assert row, op.name
        assert row.groups() == (f"{op.bytes:,}", f"{floor_us:.2f}")


EVERY_DOCUMENT = sorted(
    path
    for pattern in (
        "*.md",
        "course/*.md",
        "course/*/*.md",
        "labs/*.md",
        "labs/*/*.md",
        "mini_engine/*.md",
    )
    for path in ROOT.glob(pattern)
)


@pytest.mark.parametrize("document", EVERY_DOCUMENT, ids=lambda d: d.relative_to(ROOT).as_posix())
def test_links_anchors_and_paths_lead_somewhere(document: Path) -> None:
    text = prose(document.read_text())
    for target, anchor in LINK.findall(text):
        if target.startswith(("http", "mailto:")):
            continue
        there = (document.parent / target).resolve() if target else document
        assert there.exists(), target
        if anchor and there.suffix == ".md":
            assert anchor[1:] in anchors(there.read_text()), f"{target}{anchor}"
    for path in PATH.findall(text):
        if not path.startswith("labs/mine"):
            assert list(ROOT.glob(path.rstrip("/"))), f"{document.name} names {path}"
