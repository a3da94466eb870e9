"""Draw the figures of the chapters: `python -m course.draw [NN]`."""

import sys

from course.draw import KEPT, figures

for name, draw in figures(sys.argv[1] if len(sys.argv) > 1 else "").items():
    draw(KEPT / name)
    print(KEPT / name)
