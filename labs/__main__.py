"""`python -m labs COMMAND`."""

import sys

from labs.runner.words import PACKAGED, command

if __name__ == "__main__":
    try:
        from labs.runner.cli import main
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] in ("labs", "mini_engine"):
            raise
        there = "" if PACKAGED.exists() else ", after `make labs` has set it up"
        print(
            f"{sys.executable} has no {missing.name}. Type: {command(*sys.argv[1:])}{there}",
            file=sys.stderr,
        )
        sys.exit(2)
    sys.exit(main())
