"""Sphinx's configuration of the site: MyST-NB for the pages, furo for their looks, no network."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from textwrap import shorten
from typing import Any

from latex2mathml.converter import convert
from sphinx.addnodes import toctree
from sphinx.search.en import SearchEnglish

from course.site.figure import as_html
from course.site.landing import context as landing_context
from course.site.layout import command_card
from course.site.widgets import state
from mini_engine.plots import hue

SITE = Path(__file__).parent
WHY = "A course that makes you understand, build and measure what makes LLM decode fast."
project = "Launch Bound"
author = "The Launch Bound authors"
copyright = f"{author}, MIT licence"
root_doc = "index"
extensions = ["myst_nb"]
myst_enable_extensions = ["dollarmath", "colon_fence", "attrs_block"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # notebooks are committed with their outputs
nb_code_prompt_show, nb_code_prompt_hide = "Show the code", "Hide the code"
nb_ipywidgets_js: dict[
    str, dict[str, str]
] = {}  # sliders need a kernel, and their scripts a network
html_theme = "furo"
html_title = "Launch Bound"
templates_path = [str(SITE / "templates")]
html_static_path = [str(SITE / "static")]
html_extra_path = [str(SITE / "templates/404.html")]
html_favicon = str(SITE / "static/favicon.svg")
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_copy_source = False
html_show_sourcelink = False
html_show_search_summary = False  # it would fetch pages, which a browser refuses for local files
html_search_scorer = str(SITE / "scorer.js")
SearchEnglish.stem = cache(SearchEnglish.stem)  # type: ignore[method-assign]  # once a word, not once a page
html_math_renderer = "mathml"
highlight_language = "text"
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
# Colours by what they mean, as in the figures, whose own variables have the code in their names.
_PAGE = {"page": "paper", "host": "engine"}  # what the site calls them
_LIGHT = {_PAGE.get(name, name): light for name, (light, _) in hue.LANES.items()}
_DARK = {_PAGE.get(name, name): dark for name, (_, dark) in hue.LANES.items()}
for _name, _code_of in hue.meanings().items():
    if _code_of in hue.DARK and _name not in ("PAPER", "INK"):
        _LIGHT[_name.lower()], _DARK[_name.lower()] = _code_of, hue.DARK[_code_of]
_LIGHT |= {f"x{light[1:].lower()}": light for light in hue.DARK}
_DARK |= {f"x{light[1:].lower()}": dark for light, dark in hue.DARK.items()}
_FONTS = {
    "font-stack": "Inter, system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif",
    "font-stack--monospace": "'JetBrains Mono', ui-monospace, Menlo, Consolas, monospace",
}
_PAPER = {f"x{hue.PAPER[1:].lower()}": "var(--color-background-primary)"}
html_theme_options = {
    "navigation_with_keys": True,
    "top_of_page_buttons": [],
    "light_css_variables": _LIGHT
    | _PAPER
    | _FONTS
    | {"bad": "#b45309", "right": "#00795a", "paper": "#fbfaf7"},
    "dark_css_variables": _DARK | _PAPER | {"bad": "#fbbf24", "right": "#35c39b"},
}


def setup(app: Any) -> None:
    """Formulas become MathML when the site is built: browsers draw it, no script is needed."""

    def inline(self: Any, node: Any) -> None:
        self.body.append(convert(node.astext()))
        raise _skip()

    def block(self: Any, node: Any) -> None:
        math = convert(node.astext(), display="block")
        self.body.append(f'<div class="math-block">{math}</div>')
        raise _skip()

    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.connect("html-page-context", _face, priority=400)  # before furo draws the menu


def _face(app: Any, page: str, _template: str, context: dict[str, Any], *_: Any) -> str | None:
    """What a page says of itself to others, and the widgets that it has, with their data."""
    body, menu = context.get("body", ""), context.get("toctree")
    if menu:  # of the reference's 140 pages it is short
        short = {"collapse": True} if page.startswith("reference/mini_engine") else {}
        context["toctree"] = lambda **how: _menu(app.env, menu, **(how | short))
    if not page.startswith("notebooks/"):
        context["css_files"] = [css for css in context["css_files"] if "mystnb" not in str(css)]
    if page == "index":
        context["landing"] = _landing(app.confdir)
        body = '<div data-widget="race">'
    if page.startswith("notebooks/"):
        body = _OF_A_CELL.sub(_inlined(app), body)
        body = body.replace("</h1>", f"</h1>{command_card('make notebooks')}", 1)
    context["body"] = _IMAGE.sub(_sized(Path(app.srcdir)), body)
    first = re.search(r"<p>(?!Source: |<button)(.{40,}?)</p>", body, re.DOTALL)
    told = re.sub(r"<.*?>", "", first[1]) if first else WHY
    told = html.escape(shorten(html.unescape(told), 190, placeholder="…"))
    title = html.escape(re.sub(r"<.*?>", "", html.unescape(context.get("title", project))))
    picture = context["pathto"]("_images/preview.png", True)
    context["metatags"] = context.get("metatags", "") + (
        f'<meta name="description" content="{told}"><meta property="og:title" content="{title}">'
        f'<meta property="og:description" content="{told}">'
        f'<meta property="og:image" content="{picture}">'
    )
    for name in sorted(set(re.findall(r'data-widget="([\w-]+)"', body))):
        code = f'{_code(name)}\nconst WIDGET = "{name}";\n{_code("shim")}'
        app.add_js_file(None, body=_data(name), type="application/json", id=f"data-{name}")
        app.add_js_file(None, body=code, type="module")
    if page == "timeline":
        app.add_js_file("timeline.js")
    return "landing.html" if page == "index" else None


def _menu(env: Any, menu: Callable[..., str], **how: Any) -> str:
    """The menu from titles alone. Sphinx copies every heading of every page first, for each page,
    and then leaves out what is no title."""
    whole, env.tocs = env.tocs, _titles(env)
    try:
        return menu(**how)
    finally:
        env.tocs = whole


@cache
def _titles(env: Any) -> dict[str, Any]:
    """The table of contents of each page: its title and, below it, what its toctrees list."""
    tocs = {}
    for page, toc in env.tocs.items():
        tocs[page] = toc.deepcopy()
        for item in tocs[page].children:
            if len(item) > 1:
                if trees := [*item.findall(toctree)]:
                    item[1][:] = trees
                else:
                    item.pop(1)
    return tocs


_OF_A_CELL = re.compile(r'<img [^>]*src="[^"]*_images/([\w-]+\.svg)"[^>]*>')


def _inlined(app: Any) -> Callable[[re.Match[str]], str]:
    """A notebook's figure becomes a part of its page, too: it follows the page's colours."""
    kept = {name: Path(app.srcdir) / path for path, name in app.builder.images.items()}

    def inline(match: re.Match[str]) -> str:
        svg = kept[match[1]].read_text()
        lanes = re.sub(r"<style>.*?</style>", "", svg, flags=re.DOTALL)
        lanes = lanes.replace("<svg ", '<svg class="lanes" ', 1)
        return as_html(svg, "", f"f{match[1][:8]}") or lanes[lanes.index("<svg ") :]

    return inline


_IMAGE = re.compile(r'(<img [^>]*)src="([^"]*_images/([\w-]+\.png))"')


def _sized(sources: Path) -> Callable[[re.Match[str]], str]:
    """A figure gets its size, so that nothing moves when it comes, and comes when it is near."""

    def size(match: re.Match[str]) -> str:
        file = sources / "course/figures" / match[3]
        if not file.exists():  # of a notebook
            return match[0]
        width, height = (int.from_bytes(file.read_bytes()[at : at + 4], "big") for at in (16, 20))
        return f'{match[1]}src="{match[2]}" width="{width}" height="{height}" loading="lazy"'

    return size


def _code(name: str) -> str:
    return (SITE / f"widgets/{name}.js").read_text()


@cache
def _data(name: str) -> str:
    return json.dumps(state(name), separators=(",", ":")).replace("</", "<\\/")


@cache
def _landing(confdir: str) -> dict[str, Any]:
    return landing_context(Path(confdir).parent.parent)


def _skip() -> Exception:
    from docutils.nodes import SkipNode

    return SkipNode()
