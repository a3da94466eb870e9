"""`python -m labs COMMAND`."""

import sys

from labs.runner.cli import main

if __name__ == "__main__":
    sys.exit(main())
