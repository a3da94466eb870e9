"""What the six runners do when their incidents come again: what users were told, and what ran."""

from __future__ import annotations

from collections import Counter

from labs.lab06_debug_the_graph import runner_a, runner_b, runner_c, runner_d, runner_e, runner_f
from labs.lab06_debug_the_graph.incident import INCIDENTS

RUNNERS = {"a": runner_a, "b": runner_b, "c": runner_c, "d": runner_d, "e": runner_e, "f": runner_f}
TOLD = ("answers", "error", "adapter")  # lines of a log that users, or the log itself, read
RAN = ("upload", "copy", "capture", "replay", "node", "kernel")


def main() -> None:
    for letter, module in RUNNERS.items():
        print(f"runner {letter}: {INCIDENTS[letter].__doc__}")
        log = INCIDENTS[letter](module)
        for line in log:
            if line.startswith(TOLD):
                print(f"  {letter}  {line}")
        found = Counter(line.partition(" ")[0] for line in log)
        print(f"  {letter}  {', '.join(f'{kind} {found[kind]}' for kind in RAN if found[kind])}")


if __name__ == "__main__":
    main()
