"""`./lab COMMAND`."""

import sys

from labs.runner import command
from mini_engine.cli.ending import guarded


def main() -> int:
    """Returns the exit code."""
    try:
        from labs.runner import cli
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] in ("labs", "mini_engine"):
            raise
        print(
            f"{sys.executable} has no {missing.name}: run `make labs` once, then "
            f"{command(*sys.argv[1:])}",
            file=sys.stderr,
        )
        return 2
    return cli.main()


if __name__ == "__main__":
    sys.exit(guarded("labs", main))
