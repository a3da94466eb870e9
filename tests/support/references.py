"""Paths and modules that a text names and that do not exist.

    stale("… `mini_engine/sim/device.py`, mini_engine.sim.device, sim/device.py:Device …")    []

Any text will do: prose, fences, tables, comments, a Makefile. A path may be written from the root
(`mini_engine/sim/device.py`), from any folder (`sim/device.py`, `../sim/device.py`) or as a bare
file name (`device.py`). It may hold `*`, and a symbol of the file may follow a colon. A dotted name
is a module, or what a module defines.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import tokenize
from functools import cache
from pathlib import Path

from labs.runner.cut.migrate import names_in
from tests.support.documents import ROOT, symbol_source

TOPS = "mini_engine|labs|tests|course|notebooks"
PATH = re.compile(
    rf"(?<![\w./~*\]-])(?:\.\./)*(?P<path>(?:{TOPS})/[\w./*-]*[\w/*]|(?:[\w*-]+/)*[\w*-]+\.(?:py|md|toml|ipynb)\b)"
    r"(?::(?P<symbol>[A-Za-z_][\w.]*\w))?"
)
MODULE = re.compile(rf"(?<![\w./-])(?:{TOPS})(?:\.[A-Za-z_]\w*)+(?![\w/])")
# A pattern for many files, what a learner writes, and what a run on a GPU is yet to write.
NOT_THERE = re.compile(r"NN|NAME|\bID\b|^labs/mine|^course/measurements/(\*|bars-h200)\.json$")
OTHER_PROJECTS = (
    "vllm",
    "nanovllm",
    "torch",
    "transformers",
    "python/sglang",
    "qwen_megakernel",
    "kernel_launch",
)
FILES_OF_OTHER_PROJECTS = {
    *("api_server.py", "compilation.py", "core.py", "gpu_model_runner.py", "model_runner.py"),
    *("bench_one_batch.py", "modeling_qwen.py", "triton_attn.py", "vllm.py", "RESULTS.md", "x.py"),
    *("async_utils.py", "cuda_graph.py", "decorators.py", "scripts/convert_hf_checkpoint.py"),
    "utils.py",
}
# in a chapter, for the site, by a reader
WRITTEN_BY_A_RUN = {"trap.py", "reference/index.md", "out/popular_capture_loop.py"}
NO_FILES_OF_OURS = {"out", "mine", "build", "dist", "__pycache__"}
READ = (".md", ".py", ".toml", ".ipynb", ".html", "Makefile", ".ci/run")


@cache
def repository() -> str:
    """Every file of the repository, written from its root, a line each."""
    found = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [
            f for f in folders if f == ".ci" or not (f[0] == "." or f in NO_FILES_OF_OURS)
        ]
        found += [(Path(folder) / file).relative_to(ROOT).as_posix() for file in files]
    return "\n".join(sorted(found))


def readable() -> list[str]:
    """The files whose references are checked. The changelog tells of files that are gone."""
    files = repository().splitlines()
    return [file for file in files if file.endswith(READ) and file != "CHANGELOG.md"]


def stale_in(file: str) -> list[str]:
    """What a file of the repository names and what is not there."""
    text = (ROOT / file).read_text()
    if file.endswith(".ipynb"):
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    elif file.startswith("tests/") and file.endswith(".py"):
        text = said_in(text)  # the strings of a test are invented
    return stale(text)


def said_in(source: str) -> str:
    """The comments and docstrings of a piece of Python."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    return "\n".join([*comments, *(ast.get_docstring(node) or "" for node in nodes)])


def stale(text: str) -> list[str]:
    """What a text names and what is not there."""
    paths = [m[0] for m in PATH.finditer(text) if not _leads(m["path"], m["symbol"])]
    return paths + [m[0] for m in MODULE.finditer(text) if not _is_defined(m[0])]


@cache
def _leads(path: str, symbol: str | None) -> bool:
    known = path in FILES_OF_OTHER_PROJECTS | WRITTEN_BY_A_RUN or path.startswith(OTHER_PROJECTS)
    if known or NOT_THERE.search(path):
        return True
    end = re.escape(path.rstrip("/")).replace(r"\*", "[^/\n]*")
    # a page of the site is named without its ending, and a folder is the beginning of its files
    file = rf"^(?:.*/)?{end}(?:\.md|\.ipynb)?(?:/.*)?$"
    files = re.findall(file, repository(), re.MULTILINE)
    return bool(files) and (symbol is None or any(_has(file, symbol) for file in files))


def _has(file: str, symbol: str) -> bool:
    try:
        return file.endswith(".py") and bool(symbol_source(f"{file}:{symbol}"))
    except LookupError:
        return False


@cache
def _is_defined(name: str) -> bool:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:end])
        if place.is_dir() and end == len(parts):
            return True
        package = (place / "__init__.py").exists()  # a folder of data may bear a module's name
        file = place / "__init__.py" if package else place.with_suffix(".py")
        if file.exists():
            return end == len(parts) or parts[end] in names_in(file)
    return False
