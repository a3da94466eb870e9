"""`python -m labs COMMAND`."""

import sys

from labs.runner.words import PACKAGED, command
from mini_engine.cli.ending import guarded


def main() -> int:
    """Returns the exit code."""
    try:
        from labs.runner import cli
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] in ("labs", "mini_engine"):
            raise
        there = "" if PACKAGED.exists() else ", after `make labs` has set it up"
        print(
            f"{sys.executable} has no {missing.name}. Type: {command(*sys.argv[1:])}{there}",
            file=sys.stderr,
        )
        return 2
    return cli.main()


if __name__ == "__main__":
    sys.exit(guarded("labs", main))
