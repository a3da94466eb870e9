"""The face of the engine: `python -m mini_engine COMMAND`. Commands live in `mini_engine/cli`."""

import sys

from mini_engine.cli.ending import guarded


def main() -> int:
    """Returns the exit code."""
    from mini_engine import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(guarded("mini_engine", main))
