"""The face of the engine: `python -m mini_engine COMMAND`. Commands live in `mini_engine/cli`."""

import sys

from mini_engine.cli import main

if __name__ == "__main__":
    sys.exit(main())
