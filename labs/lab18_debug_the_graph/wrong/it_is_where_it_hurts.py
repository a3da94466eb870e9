"""it-is-where-it-hurts: the first wrong answer of the log is where the fault is."""
# to: runner_a.py


def diagnosis():
    return "numbers-stay-live", 33


# to: runner_d.py


def diagnosis():
    return "capture-runs", 36
