"""What the documents say is true: commands run, shown output is real, links lead somewhere."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from mini_engine.model.config import named_shape
from mini_engine.step.capacity import floor_ms
from mini_engine.step.cards import load_spec
from mini_engine.step.kernels import StepShape, step_ops, step_parts
from mini_engine.step.run import MODES, step_time
from mini_engine.step.storage import stored_as
from tests.support.documents import LINK, ROOT, anchors, fences, prose, run_command

DOCUMENTS = [
    ROOT / name
    for name in (
        "README.md",
        "CONTRIBUTING.md",
        "course/README.md",
        "course/CHEATSHEET.md",
        "course/measurements/README.md",
        "labs/README.md",
        "mini_engine/README.md",
    )
]
# These would run this suite inside itself, or take minutes: `make --dry-run` checks only that they
# are well formed.
DRY = ("make test", "make slow", "make gpu", "make book", "make notebooks", "make figures")
DRY += ("make labs",)


HOSTS = ("desktop-2025", "server-2024", "server")

each_document = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda d: d.relative_to(ROOT).as_posix()
)


@each_document
def test_every_command_in_a_document_runs(document: Path, tmp_path: Path) -> None:
    for fence in fences(document.read_text()):
        for command in fence.commands if fence.info == "sh" else ():
            if command.startswith(DRY):
                command = command.replace("make", "make --dry-run", 1)
            elif command == "make demo":  # what it runs is run by the next test
                command = "make --dry-run demo"
            done = run_command(command, tmp_path)
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_the_python_of_the_readme_prints_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    (fence,) = [f for f in fences((ROOT / "README.md").read_text()) if f.info == "python"]
    exec(compile(fence.body, "README.md", "exec"), {})
    assert capsys.readouterr().out.split() == (fence.shows or "").split()


def test_the_table_of_the_readme_is_what_the_demo_finds(tmp_path: Path) -> None:
    done = run_command("python -m mini_engine demo --json", tmp_path)
    assert done.returncode == 0, done.stderr
    found = {row["mode"]: row for row in json.loads(done.stdout)["predictions"]}
    named = {
        "HF eager": "transformers, eager",
        "NONE": "vLLM, eager",
        "FULL": "vLLM, one graph",
        "launch-bound": "this engine, five kernels a layer in one graph",
    }
    text = (ROOT / "README.md").read_text()
    for mode, name in named.items():
        itl, low, high = (
            f"{found[mode][key] / 1e3:#.2g}".rstrip(".") for key in ("itl_us", "low_us", "high_us")
        )
        row = f"| {name} | {found[mode]['launches']:,} | {itl} ({low} to {high}) |"
        assert row in text, row
    fresh, kept = (
        imread(at / "timeline.png") for at in (tmp_path / "out", ROOT / "course/figures")
    )
    assert fresh.shape == kept.shape, "course/figures/timeline.png is stale: make figures"
    # versions of matplotlib draw letters a little differently; the boxes must not move
    assert np.abs(fresh - kept).mean() < 0.01, "course/figures/timeline.png is stale: make figures"


def test_the_readme_says_how_far_the_predictions_are_off(tmp_path: Path) -> None:
    done = run_command("python -m mini_engine validate --json", tmp_path)
    assert done.returncode == 0, done.stderr
    found, text = json.loads(done.stdout), " ".join((ROOT / "README.md").read_text().split())
    one = found["summary"]
    said = f"{one['points']} of them, are predicted {one['median_error']:.1%} off in the median, "
    said += f"and {one['left_out_median']:.1%} off where the fit has not seen their source"
    assert said in text, said
    graph = {one["least"]: f"{one['median']:.0%}" for one in found["batches"]
             if one["mode"] == "FULL"}  # fmt: skip
    said = (
        f"{graph[1]} at batch 1, {graph[2]} at 2 to 8, {graph[9]} at 9 to 64 and {graph[65]} above"
    )
    assert said in text, said


def test_the_readme_is_read_in_three_minutes_and_begins_with_a_picture() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(prose(text).split()) <= 600
    assert "![" in text[:600]


def test_the_numbers_of_the_cheat_sheet_are_what_the_engine_says() -> None:
    spec, hf = load_spec("h200"), load_spec("h200", engine="transformers")
    text = (ROOT / "course/CHEATSHEET.md").read_text()
    for name in ("qwen3-0.6b", "qwen3-1.7b", "qwen2.5-1.5b", "llama-3.2-1b"):
        config, shape = named_shape(name), StepShape.decode(1, 512)
        read = stored_as(config).read
        lists = [step_ops(config, shape, style) for style in ("hf56", spec.ops, "fused5")]
        eager_hf = step_time(lists[0], hf, "eager").itl_us / 1e3
        times = [step_time(lists[1], spec, mode).itl_us / 1e3 for mode in MODES]
        row = (
            f"| {name} | {read / 1e9:.2f} | {stored_as(config).kv_bytes_per_token // 1024} "
            f"| {floor_ms(read, spec.copy_bandwidth_gb_s):.3f} "
            f"| {', '.join(f'{len(ops):,}' for ops in lists)} "
            f"| {eager_hf:.1f}; {', '.join(f'{ms:.1f}' for ms in times)} |"
        )
        assert row in text, row
    for figure in (
        "cpu_op_us", "live_op_us", "stream_gap_us", "graph_gap_us", "graph_launch_us"
    ):  # fmt: skip
        assert f"{getattr(spec, figure):.3g} µs" in text, figure
    vllm, sure = spec.sheets["engine"], [spec.interval(1, mode)[1] for mode in ("NONE", "FULL")]
    assert f"{vllm['kernel_ops']:.2g} ops a kernel" in text
    assert f"{vllm['live_ops']:.3g} ops a live op" in text
    assert f"{hf.sheets['engine']['kernel_ops']:g} op a kernel: {hf.cpu_op_us:.3g} µs" in text
    ops = [load_spec("h200", host).sheets["host"]["op_us"] for host in HOSTS]
    said = "{:.3g} µs on a desktop of 2025, {:.3g} on a server of 2024, {:.3g} on the usual one"
    assert said.format(*ops) in " ".join(text.split())
    pieces = spec.interval(1, "PIECEWISE")[1]
    said = f"up to {sure[0]:.1f} times (eager), {pieces:.1f} (pieces), {sure[1]:.1f} (graphs)"
    assert said in " ".join(text.split())


def test_the_table_of_kernels_is_what_the_op_list_says() -> None:
    spec = load_spec("h200")
    parts = step_parts(named_shape("qwen3-0.6b"), StepShape.decode(1, 512), "fused5")
    text = (ROOT / "mini_engine/README.md").read_text()
    for op in (*parts.layer, parts.tail[0]):
        floor_us = op.bytes / spec.copy_bandwidth_gb_s / 1e3
        row = re.search(rf"^\| {op.name}\b[^|]*\| ([\d,]+) \| ([\d.]+) \|", text, re.MULTILINE)
        assert row, op.name
        assert row.groups() == (f"{op.bytes:,.0f}", f"{floor_us:.2f}")


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
def test_links_and_anchors_lead_somewhere(document: Path) -> None:
    text = prose(document.read_text())
    for target, anchor in LINK.findall(text):
        if target.startswith(("http", "mailto:")):
            continue
        there = (document.parent / target).resolve() if target else document
        assert there.exists(), target
        if anchor and there.suffix == ".md":
            assert anchor[1:] in anchors(there.read_text()), f"{target}{anchor}"


def test_what_is_set_up_elsewhere_is_what_the_project_asks_for() -> None:
    """Of a container for an editor, and of Binder."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    runtime = (ROOT / ".binder/runtime.txt").read_text()
    for version in re.findall(r"3\.(\d+)", f"{container['image']} {runtime}"):
        assert int(version) >= int(project["requires-python"].rpartition(".")[2])
    _, goal = container["postCreateCommand"].split()
    assert re.search(rf"^{goal}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    (first,) = container["customizations"]["codespaces"]["openFiles"]
    assert (ROOT / first).exists()
    constraints, package = (ROOT / ".binder/requirements.txt").read_text().splitlines()
    assert (ROOT / ".binder" / constraints.removeprefix("-c ")).exists()
    assert package.removeprefix("-e .[").removesuffix("]") in project["optional-dependencies"]
