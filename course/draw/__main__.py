"""Draw the figures of the chapters: `python -m course.draw [NN]`."""

import sys

from mini_engine.cli.ending import guarded


def main() -> int:
    """Returns the exit code."""
    from course.draw import KEPT, figures

    for name, draw in figures(sys.argv[1] if len(sys.argv) > 1 else "").items():
        draw(KEPT / name)
        print(KEPT / name)
    return 0


if __name__ == "__main__":
    sys.exit(guarded("course.draw", main))
