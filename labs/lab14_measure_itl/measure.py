"""The measuring step of lab 14: eager against graph against fused, each predicted first.

In:  --predict "batch=1 eager=… full=… fused=…" in ms, once a batch (1 and 8); asked for at a
     terminal. Out: see `labs/measuring/step_timing.py`. The stopwatch and the intervals are the
     learner's.
"""

from __future__ import annotations

import sys
from pathlib import Path

from labs.measuring.step_timing import Race, main

RACE = Race(
    Path(__file__).parent,
    {"eager": "ours-eager", "full": "ours-graph", "fused": "graph-5"},
    emulated=("eager", "full"),
)

if __name__ == "__main__":
    sys.exit(main(RACE, sys.argv[1:]))
