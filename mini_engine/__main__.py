"""The face of the engine: `python -m mini_engine COMMAND`. Commands live in `mini_engine/cli`."""

import sys

from mini_engine.cli import ending


def main() -> int:
    """Returns the exit code."""
    from mini_engine import cli

    if {"-h", "--help"} & set(sys.argv):
        from mini_engine.cli.stand_ins import stand_in

        stand_in()
    return cli.main()


if __name__ == "__main__":
    sys.exit(ending.program("mini_engine", main))
