"""A figure as a part of its page: text to select, the colours of the scheme, a caption.

In:  an SVG of `mini_engine.plots.canvas`, whose title and caption are groups of their own. Out:
HTML on one line. A picture of another make stays an image.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from zlib import crc32

from mini_engine.plots.canvas import LETTERS, MONOSPACE

SHORTER = (  # the same in half the letters: pictures of lanes have thousands of rectangles
    (r"M ?(\S+) (\S+)L(\S+) \2L\3 (\S+)L\1 \4z", r"M\1 \2H\3V\4H\1z"),
    (r"M ?(\S+) (\S+)L\1 (\S+)L(\S+) \3L\4 \2z", r"M\1 \2V\3H\4V\2z"),
    (r' transform="rotate\(-?0 [^"]*"', ""),
)
ABOVE, BELOW = 4, 10  # points around what is left when title and caption are gone


def figure(found: re.Match[str], folder: Path) -> str:
    """`found` has what the document in `folder` says of the picture, and its path."""
    path = folder / found[2]
    return as_html(path.read_text(), found[1], path.stem) or found[0]


def as_html(svg: str, alt: str, name: str) -> str:
    """The figure that the SVG is, of that name on its page, or "" for one of another make."""
    drawn = re.search(r'data-drawn="(\d+) (\d+)"', svg)
    size = re.search(r'viewBox="0 0 ([\d.]+) ', svg)
    if drawn is None or size is None:
        return ""
    title, caption = (_between(svg, f"<{part}>", f"</{part}>") for part in ("title", "desc"))
    body = svg[svg.index("</style>") + len("</style>") : svg.rindex("</svg>")]
    for part in ("title", "desc", "patch_1"):  # the last one is the paper
        body = re.sub(rf'<g id="{part}">.*?</g>', "", body, count=1, flags=re.DOTALL)
    named = set(re.findall(r"#([\w-]+)", body))
    body = re.sub(r' id="([\w-]+)"', lambda id: id[0] if id[1] in named else "", body)
    body = re.sub(r'(?<=[#"])(i\d+)(?=["\)])', rf"f{crc32(name.encode()) % 9999}-\1", body)
    body = body.replace(LETTERS, "var(--font-stack)")
    body = body.replace(MONOSPACE, "var(--font-stack--monospace)")
    body = re.sub(r"<g>\s*</g>", "", " ".join(body.split()))
    for long, short in SHORTER:
        body = re.sub(long, short, body)
    top, bottom, wide = int(drawn[1]) - ABOVE, int(drawn[2]) + BELOW, float(size[1])
    kind = "drawn wide" if wide > 600 else "drawn"
    return (
        f'<figure class="{kind}"><svg viewBox="0 {top} {wide:g} {bottom - top}" role="img" '
        f'aria-label="{escape(alt or title)}">{body}</svg>'
        f"<figcaption><b>{title}</b> {caption}</figcaption></figure>"
    )


def _between(text: str, first: str, last: str) -> str:
    return text.partition(first)[2].partition(last)[0]
