"""Lay out the sources, then run Sphinx: `python -m course.site`."""

from __future__ import annotations

import argparse
import functools
import gc
import http.server
import sys
from pathlib import Path

from mini_engine.cli.ending import guarded
from mini_engine.files import check_folder

ROOT = Path(__file__).parent.parent.parent
SITE = Path(__file__).parent


def build(into: Path) -> int:
    """Returns Sphinx's exit code; 0 is a site without a warning."""
    from sphinx.cmd.build import main as sphinx_build

    from course.draw import figures
    from course.site.layout import lay_out

    sources = lay_out(ROOT, into.with_name(f"{into.name}-source"))
    doctrees = into.with_name(f"{into.name}-doctrees")  # no part of what is published
    words = ["-b", "html", "-W", "--keep-going", "-q", "-c", str(SITE), "-d", str(doctrees)]
    gc.disable()  # it would look through all pages' trees again and again: a quarter of the time
    try:
        code = sphinx_build([*words, str(sources), str(into)])
    finally:
        gc.enable()
    figures("00")["00-one-token.svg"](into / "_images/preview.png")  # of a link to the site
    for path in into.rglob("*.map"):  # of furo's own sources, which nobody debugs here
        path.unlink()
    for path in (into / "_images").glob(f"{64 * '[0-9a-f]'}.svg"):  # of notebooks, now in pages
        path.unlink()
    return code


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m course.site", description="Build the site.")
    parser.add_argument(
        "-o", "--out", type=Path, default=Path("out/book"), help="default: %(default)s"
    )
    parser.add_argument("--serve", action="store_true", help="then show it on localhost:8000")
    args = parser.parse_args()
    code = build(check_folder(args.out))
    if code == 0:
        print(f"the site: {args.out}/index.html")
    if code == 0 and args.serve:
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(args.out))
        print("http://localhost:8000, Ctrl-C to stop")
        http.server.ThreadingHTTPServer(("localhost", 8000), handler).serve_forever()
    return code


if __name__ == "__main__":
    sys.exit(guarded("course.site", main))
