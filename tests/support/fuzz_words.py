"""Command lines that nobody would type, and files that nobody would write, for hypothesis.

In:  a parser of argparse. Out: lists of words: options that the parser knows, with values of every
     kind that such an option might get; and the files that the values name.

    FILES = documents()                     # name -> bytes, each right for some option
    words = data.draw(lines("serve"))       # ["serve", "--trace", "trace.csv", ...]
    files = data.draw(mutated(FILES))       # some of them spoiled
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hypothesis import strategies as st

from mini_engine.cli import build_parser
from mini_engine.engine.generation import SHIPPED
from mini_engine.model.config import SHAPES
from mini_engine.step.figures import FOLDERS, names
from mini_engine.validate.published import SHIPPED_POINTS
from tests.support.bench_rows import made_up, made_up_rows

HUGE = "9" * 400
INTEGERS = ("1", "2", "3", "8", "33", "256", "0", "-1", "1000", "65536", "1e9", "1000000000",
            "99999999999999", HUGE, "1e400", "1.5", "nan", "", "x", "²", "٣")  # fmt: skip
NUMBERS = ("0.5", "1", "0", "-0.5", "1e-9", "1e308", "1e309", "nan", "-inf", "4", "", "x", HUGE)
LISTS = ("1,2,4", "1", "8,4,2", "4,4", "1,99999999", "0", "-1,2", "", ",", "1,x", "33:1", "1e9,1")
NAMES = (*SHAPES, *names("card"), *names("host"), *names("engine"), "tiny", "H200", "qwen3-0.6B")
STRANGE = ("", " ", "-", "../../etc/passwd", "/dev/null", "/", ".", "h2oo", "naïve", "\udcff", "{}",
           "NONE,FULL", "33:100,5:20", "33:", "a:b", "x" * 5000, "[bold]", "%s", "--")  # fmt: skip
BAD_OUT = ("a.txt", "a", "/dev/full", "/proc/nowhere/a.png", "card.json/a.png", "", ".", "x" * 300)
OUT = {
    "picture": ("out/a.png", "out/a.svg", "a.pdf", *BAD_OUT),
    "json_out": ("out/a.json", "bench.json", *BAD_OUT),
    "out_folder": ("out", *BAD_OUT),
}
VALUES = (None, True, -1, 0, 1, 1.5, 1e308, 10**9, 10**30, "", "x", [], {}, [{}], [None], {"a": []})
# dest of an option -> the files that it reads
READS = {
    "read": ("events.json",),
    "trace": ("trace.csv", "trace.jsonl"),
    "points": ("points.json",),
    "plot": ("bench.json",),
    "histogram": ("rows.json",),
    "prompts": ("prompts.txt",),
    **dict.fromkeys(("spec", "gpu", "base"), ("card.json",)),
    "host": ("host.json",),
    "engine": ("engine.json",),
    **dict.fromkeys(("shape", "model"), ("model",)),
}
NESTED = 3000  # levels, more than Python's parser takes


def documents() -> dict[str, bytes]:
    """A file of each kind that some option reads, in its right form."""
    h200 = json.loads((FOLDERS["card"] / "h200.json").read_text("utf-8"))
    event = {"ph": "X", "pid": 1, "tid": 1, "name": "a", "cat": "kernel", "ts": 0.0, "dur": 1.5}
    named = {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "GPU"}}
    points = json.loads(SHIPPED_POINTS.read_text("utf-8"))
    found: dict[str, Any] = {
        "card.json": h200,
        "host.json": json.loads((FOLDERS["host"] / "server.json").read_text("utf-8")),
        "engine.json": json.loads((FOLDERS["engine"] / "vllm.json").read_text("utf-8")),
        "events.json": {"traceEvents": [named, event]},
        "rows.json": {"steps_by_rows": {"33": 100, "5": 20}},
        "points.json": points[:12],
        "bench.json": asdict(made_up(made_up_rows((1, 8)), emulated=True)),
        "model/config.json": json.loads((SHIPPED / "config.json").read_text("utf-8")),
    }
    files = {name: json.dumps(data).encode() for name, data in found.items()}
    rows = b"2023-11-16 18:15:46.68,374,44\n2023-11-16 18:15:47.68,30,4\n"
    files["trace.csv"] = b"TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows
    line = {"arrival_s": 0.5, "prompt_tokens": 20, "output_tokens": 5}
    files["trace.jsonl"] = (json.dumps(line) + "\n").encode() * 2
    files["prompts.txt"] = b"Return the\nRaise an\n"
    return files


@st.composite
def spoiled(draw: st.DrawFn, content: bytes) -> bytes:
    """The file with one thing wrong, or as it is."""
    how = draw(st.sampled_from(("as it is", "value", "value", "gone", "cut", "bytes", "whole")))
    if how == "cut":
        return content[: draw(st.integers(0, len(content)))]
    if how == "bytes":
        at = draw(st.integers(0, len(content)))
        return content[:at] + draw(st.binary(min_size=1, max_size=8)) + content[at:]
    if how == "whole":
        deep = b"[" * NESTED + b"]" * NESTED, b'{"a":' * NESTED + b"1" + b"}" * NESTED
        return draw(st.sampled_from((b"", b"\xff\xfe", b"null", b"[]", b"{}", b"1", b"\0", *deep)))
    if how == "as it is" or not content.startswith((b"{", b"[")):
        return content
    try:
        data = json.loads(content)
    except ValueError:  # lines of JSON
        return content.replace(b": 20", draw(st.sampled_from((b": -1", b": 1e999", b': "x"'))))
    at, key = {"": data}, ""
    while at[key] and isinstance(at[key], dict | list) and (key == "" or draw(st.booleans())):
        at = at[key]
        key = draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
    if how == "gone":
        del at[key]
    else:
        at[key] = draw(st.sampled_from(VALUES))
    return json.dumps(data).encode()


@st.composite
def mutated(draw: st.DrawFn, files: Mapping[str, bytes], named: Sequence[str]) -> dict[str, bytes]:
    """The files that the words name, spoiled or not; the others are left out."""
    words = {word.partition("/")[0] for word in named}
    wanted = {name: text for name, text in files.items() if name.partition("/")[0] in words}
    return {name: draw(spoiled(content)) for name, content in wanted.items()}


def options_of(command: str) -> list[argparse.Action]:
    """The options and positional words of a command, as its parser has them."""
    parser = build_parser([command])
    (subparsers,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    actions: list[argparse.Action] = subparsers.choices[command]._actions
    return [action for action in actions if not isinstance(action, argparse._HelpAction)]


def sound(action: argparse.Action) -> Sequence[str]:
    """Values that the option is meant to get."""
    kind = getattr(action.type, "__name__", "str")
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    if kind in OUT:
        return OUT[kind][:1]
    known = {"card": names("card"), "host": names("host"), "engine": names("engine")}
    for dest, named in (("spec", "card"), ("gpu", "card"), ("base", "card"), ("host", "host"),
                        ("engine", "engine")):  # fmt: skip
        if action.dest == dest:
            return [*known[named][:4], *READS[dest] * 4]
    if action.dest in READS:
        return [*READS[action.dest] * 4, "qwen3-0.6b"]
    if kind == "whole_numbers":
        return LISTS[:4]
    if kind in ("positive", "whole", "counted", "int"):
        return INTEGERS[:6]
    return (
        NUMBERS[:2] if kind in ("number", "float", "microseconds", "share", "gibibytes") else ["x"]
    )


def anything(action: argparse.Action, files: Sequence[str]) -> Sequence[str]:
    """Values of the option's kind that lie at its limits or beyond, and some of other kinds."""
    kind = getattr(action.type, "__name__", "str")
    paths = [name.partition("/")[0] for name in files]
    if kind in OUT:
        return OUT[kind]
    return (*INTEGERS, *NUMBERS, *LISTS, *STRANGE, *NAMES, *paths)


@st.composite
def lines(draw: st.DrawFn, command: str, files: Sequence[str]) -> list[str]:
    """The words of a command line: the command and up to five of its options, among them one that
    reads a file, where it has any; at most one of them has a value that it is not meant to get."""
    actions = options_of(command)
    chosen = draw(st.lists(st.sampled_from(actions), max_size=4, unique_by=id))
    if reading := [action for action in actions if action.dest in READS]:
        chosen.append(draw(st.sampled_from(reading)))
    odd = draw(st.integers(0, 2 * len(chosen)))
    words = [command]
    for place, action in enumerate(chosen):
        if action.option_strings:
            words.append(draw(st.sampled_from(action.option_strings)))
        if action.nargs == 0 or (action.nargs == "?" and draw(st.booleans())):
            continue
        values = anything(action, files) if place == odd else sound(action)
        words.append(draw(st.sampled_from(values)))
    if draw(st.integers(0, 19)) == 0:
        words.append(draw(st.sampled_from(("--bach", "extra", "--help", "--version", "--", "-h"))))
    return words
