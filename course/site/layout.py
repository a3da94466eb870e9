"""Lay the site's sources out in a folder of their own.

In:  the repository. Out: a folder with the same layout: documents, figures, notebooks; an index
that has them all in order; a page for each module of the engine, written from its docstrings.

A chapter gets a line of cards below its title and fields below its predictions (of
course/predictions.toml), and `<!-- widget: NAME -->`, which a forge does not show, becomes the
place of `widgets/NAME.js`. A fence such as `python from FILE:SYMBOL` gets the
name of a language that a highlighter knows; the rest of a document is not touched.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

from course.site.figure import figure
from course.site.path import READING, Chapter, chapters
from course.site.reference import module_page
from course.site.stills import answers, still
from mini_engine.cli import COMMANDS
from mini_engine.model.config import named_shape
from mini_engine.step.capacity import floor_ms
from mini_engine.step.cards import load_spec
from mini_engine.step.storage import stored_as

DOCUMENTS = ("*.md", "course/*.md", "course/deeper/*.md", "course/measurements/*.md")
DOCUMENTS += ("labs/*.md", "labs/*/README.md")
PLAIN = (
    "course/figures/*.png",
    "course/figures/*.svg",
    "notebooks/*.ipynb",
    "course/measurements/*.json",
)
FENCE = re.compile(r"^(```+)([^\n`]+)$", re.MULTILINE)
FIGURE = re.compile(r"^!\[([^\]]*)\]\(([\w./-]+/[\w-]+\.svg)\)$", re.MULTILINE)
WIDGET = re.compile(r"^<!-- widget: ([\w-]+) -->$", re.MULTILINE)
PREDICT = re.compile(r"^## Predict before you run\n.*?(?=^## )", re.MULTILINE | re.DOTALL)
ALL_PREDICTIONS = "../your-predictions.html"
TRY = {
    "race": "the race", "capture": "a replay", "pages": "the page table", "ladder": "a ladder",
    "roofline": "the roofline", "cutter": "cutting", "softmax": "tiles", "floor": "five levers",
}  # fmt: skip
# Pages that the menu opens below another one.
BELOW = {"course/README.md": "[0-9]*", "labs/README.md": "lab*/README"}
# Links to a file that is no page lead to its page in the reference, or become plain text.
SOURCE_LINK = re.compile(r"\[([^\]]+)\]\(((?!https?:)[^)#\s]+)(#[^)]*)?\)")


def lay_out(root: Path, into: Path) -> Path:
    """Returns the folder, made anew."""
    shutil.rmtree(into, ignore_errors=True)
    modules = sorted(
        path
        for path in (root / "mini_engine").rglob("*.py")
        if "checkpoints" not in path.parts and path.name != "__main__.py"
    )
    pages = {_page_of(path.relative_to(root)): path for path in modules}
    pages = {page: path for page, path in pages.items() if path.read_text().strip()}
    for page, path in pages.items():
        orphan = "---\norphan: true\n---\n"  # the menu has no room for two hundred modules
        write(into / page, orphan + module_page(path, path.relative_to(root)))
    cards = {f"{chapter.page}.md": cards_of(chapter) for chapter in chapters(root)}
    for lab in sorted(root.glob("labs/lab*/lab.toml")):
        of_lab = cards_of_lab(tomllib.loads(lab.read_text()), number_of(lab.parent.name))
        cards[f"labs/{lab.parent.name}/README.md"] = of_lab
    asked = tomllib.loads((root / "course/predictions.toml").read_text())
    found = [path for pattern in DOCUMENTS for path in sorted(root.glob(pattern))]
    for path in (*found, root / "mini_engine/README.md"):
        name, text = path.relative_to(root), prepared(path, root)
        title, _, rest = text.partition("\n")
        if name.as_posix() in cards:
            moves = "".join(
                f'- <a href="#widget-{widget}">Try: {TRY[widget]}</a>\n'
                for widget in re.findall(r'id="widget-(\w+)"', rest)
            )
            text = f"{title}\n\n{cards[name.as_posix()]}{moves}\n{rest}"
        if name.stem in asked and name.parts[0] == "course":
            asks = PREDICT.search(text)
            at = asks.end() if asks else len(text)
            text = text[:at] + fields_of(name, asked[name.stem]) + text[at:]
        if below := BELOW.get(name.as_posix()):
            text += f"\n```{{toctree}}\n:glob:\n:hidden:\n\n{below}\n```\n"
        write(into / name, text)
    for pattern in PLAIN:
        for path in sorted(root.glob(pattern)):
            (into / path.relative_to(root)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, into / path.relative_to(root))
    write(into / "reference/index.md", _reference_index(sorted(pages)))
    for path in sorted(Path(__file__).parent.glob("pages/*.md")):
        text = path.read_text().replace("FIGURES", json.dumps(step_figures()))
        write(into / path.name, WIDGET.sub(place_of, text))
    return into


def prepared(path: Path, root: Path) -> str:
    """The document, with fences and links as a page can have them."""

    def language(match: re.Match[str]) -> str:
        return f"{match[1]}{match[2].split()[0]}"

    def link(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        there = (path.parent / target).resolve()
        inside = there.relative_to(root) if there.is_relative_to(root) else None
        if inside is None or there.suffix in (".md", ".ipynb", ".png", ".svg"):
            return match[0]
        if there.suffix == ".py" and inside.parts[0] == "mini_engine":
            up = "../" * (len(path.relative_to(root).parts) - 1)
            return f"[{text}]({up}{_page_of(inside)}{anchor})"
        return f"{text} (`{inside.as_posix()}`)"

    text = FENCE.sub(language, path.read_text())
    text = FIGURE.sub(lambda found: figure(found, path.parent), text)
    return SOURCE_LINK.sub(link, WIDGET.sub(place_of, text))


def place_of(found: re.Match[str]) -> str:
    """Where the widget is drawn that was found in a document."""
    widget = found[1]
    head = f'<div class="widget" id="widget-{widget}" data-widget="{widget}">'
    return f"{head}{still(widget)}</div>"


def fields_of(name: Path, fields: list[dict[str, Any]]) -> str:
    """The place of the fields for one's predictions on a chapter's page."""
    state = {"page": name.with_suffix("").as_posix(), "fields": fields, "all": ALL_PREDICTIONS}
    kept = html.escape(json.dumps(state, ensure_ascii=False), quote=True)
    head = f'<div class="widget" data-widget="predict" data-state="{kept}">'
    return f"{head}{answers(fields)}</div>\n\n"


def cards_of(chapter: Chapter) -> str:
    """A list of what belongs to the chapter, as Markdown of its page."""
    lines = [f"{READING} min to read"]
    lines += [f"[Lab {n}, {m} min](../{page}.md)" for n, (page, m) in chapter.labs.items()]
    lines += [f"[Notebook {n}](../{page}.ipynb)" for n, page in chapter.notebooks.items()]
    commands = [f"`{name}`" for name, (_, _, of) in COMMANDS.items() if of == chapter.number]
    lines += [f"Try: {', '.join(commands)}"] if commands else []
    return _as_cards(lines)


def cards_of_lab(lab: dict[str, Any], number: str) -> str:
    """The same for a lab, from its lab.toml; the first card is the command that starts it."""
    chapter, notebook = lab["chapter"], lab.get("notebook", "")
    lines = [command(f"./lab start {number}"), f"{lab['minutes']} min", "any laptop"]
    if "without" in lab:
        lines[2] = f"without a GPU: {lab['without']}"
    lines.append(f"[Chapter {int(Path(chapter).name[:2])}](../../{chapter})")
    if notebook:
        lines.append(f"[Notebook {Path(notebook).name[:2]}](../../{notebook})")
    return _as_cards(lines)


def number_of(folder: str) -> str:
    """`lab07b_static_cache` -> `7b`, as the command line has it."""
    return re.match(r"lab0?(\d+b?)_", folder)[1]  # type: ignore[index]


def command(line: str) -> str:
    """A button that copies the line."""
    return f'<button type="button" class="copies" data-copy="{line}"><code>$ {line}</code></button>'


def command_card(line: str) -> str:
    """The command alone, as HTML."""
    return f'<ul class="cards"><li><p>{command(line)}</p></li></ul>'


def _as_cards(lines: list[str]) -> str:
    return "{.cards}\n" + "".join(f"- {line}\n" for line in lines)


def step_figures() -> dict[str, float]:
    """What the interactive page computes with, in µs and ns: vLLM on an H200 and a usual server,
    and what a request adds: `request_us` to the CPU's work around a step, and `keys_us` to its
    kernels, the time to read the cached keys and values of 512 tokens of Qwen3-0.6B.
    """
    spec = load_spec("h200")
    names = ("host_step_us", "ahead_us", "copy_us", "sync_us", "kernel_floor_us", "stream_gap_us")
    names += ("graph_gap_us", "graph_launch_us", "graph_node_ns", "request_us")
    kv_bytes = 512 * stored_as(named_shape("qwen3-0.6b")).kv_bytes_per_token
    keys_us = 1e3 * floor_ms(kv_bytes, spec.attention_gb_s)
    return {name: getattr(spec, name) for name in names} | {"keys_us": round(keys_us, 3)}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _page_of(module: Path) -> str:
    """`mini_engine/sim/graphs.py` -> `reference/mini_engine.sim.graphs.md`"""
    dotted = ".".join(module.with_suffix("").parts).removesuffix(".__init__")
    return f"reference/{dotted}.md"


def _reference_index(pages: list[str]) -> str:
    names = [Path(page).stem for page in pages]
    links = "\n".join(f"- [{name}]({name}.md)" for name in names)
    return (
        "# Reference of the engine\n\nEvery module of `mini_engine`, from its own docstrings.\n\n"
        f"{links}\n"
    )
