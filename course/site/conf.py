"""Sphinx's configuration of the site: MyST-NB for the pages, furo for their looks, no network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

project = "Launch Bound"
author = "The Launch Bound authors"
copyright = "MIT licence"
root_doc = "index"
extensions = ["myst_nb"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # notebooks are committed with their outputs
nb_ipywidgets_js: dict[
    str, dict[str, str]
] = {}  # sliders need a kernel, and their scripts a network
html_theme = "furo"
html_title = "Launch Bound"
html_static_path = [str(Path(__file__).parent / "static")]
html_css_files = ["site.css"]
html_js_files = ["timeline.js"]
html_show_sourcelink = False
html_show_search_summary = False  # it would fetch pages, which a browser refuses for local files
html_math_renderer = "mathml"
highlight_language = "text"
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}


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
    app.connect("html-page-context", _short_sidebar, priority=400)  # before furo's own


_DRAWN: dict[str, Any] = {}  # sidebars of the reference, by how furo asks for them


def _short_sidebar(_app: Any, page: str, _template: str, context: dict[str, Any], *_: Any) -> None:
    """Without what is hidden, which furo would show: two hundred modules on every page."""
    if toctree := context.get("toctree"):

        def short(**how: Any) -> Any:
            how |= {"includehidden": False}
            if not page.startswith("reference/mini_engine"):
                return toctree(**how)
            key = str(sorted(how.items()))  # these pages are not in it, so it is the same for all
            if key not in _DRAWN:
                _DRAWN[key] = toctree(**how)
            return _DRAWN[key]

        context["toctree"] = short


def _skip() -> Exception:
    from docutils.nodes import SkipNode

    return SkipNode()
