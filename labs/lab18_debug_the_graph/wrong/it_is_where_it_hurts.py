"""it-is-where-it-hurts: the first wrong answer of the log is where the fault is."""
# to: runner_a.py


def diagnosis():
    return "graphs-follow-names", 33


# to: runner_d.py


def diagnosis():
    return "a-warm-up-is-no-step", 36
