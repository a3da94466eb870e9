"""No document, docstring or setting names a path or a module that does not exist."""

from __future__ import annotations

import pytest

from tests.support.references import readable, said_in, stale, stale_in


def test_every_path_and_module_that_the_repository_names_exists() -> None:
    found = {file: gone for file in readable() if (gone := stale_in(file))}
    assert not found, "\n".join(f"{file}: {', '.join(gone)}" for file, gone in found.items())


def test_every_kind_of_file_is_read() -> None:
    assert {"README.md", "Makefile", "labs/lab18_debug_the_graph/lab.toml"} <= set(readable())
    assert not any("labs/mine" in file or ".venv" in file for file in readable())


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        # as it should be
        ("See `mini_engine/sim/graphs.py` and [it](../mini_engine/sim/graphs.py).", []),
        ("the labs/*/README.md, the chapters in course/, `labs/lab05_capture_replay/`.", []),
        ("a lab is labs/labNN_name/lab.toml, your file is in labs/mine/lab05_capture_replay", []),
        ("vLLM's `vllm/config/compilation.py` and torch/cuda/graphs.py are not ours", []),
        # as it should not be
        ("See `mini_engine/graphs.py`.", ["mini_engine/graphs.py"]),
        ("```sh\nless tests/nowhere/test_x.py\n```", ["tests/nowhere/test_x.py"]),
        ("[a lab](../labs/lab99_nowhere/README.md)", ["../labs/lab99_nowhere/README.md"]),
        ("mini_engine/sim/no*.py", ["mini_engine/sim/no*.py"]),
        ("`sim/graphs.py:GraphRunner.fly`", ["sim/graphs.py:GraphRunner.fly"]),
        (":mod:`mini_engine.graphs`, of tests.nowhere", ["mini_engine.graphs", "tests.nowhere"]),
    ],
)
def test_what_does_not_exist_is_noticed(text: str, gone: list[str]) -> None:
    assert stale(text) == gone


def test_of_a_test_the_comments_and_docstrings_are_read_and_not_its_strings() -> None:
    source = '"""sim/one.py"""\ndef f():\n  """sim/two.py"""\n  return "no/no.py"  # sim/three.py\n'
    assert sorted(stale(said_in(source))) == ["sim/one.py", "sim/three.py", "sim/two.py"]
