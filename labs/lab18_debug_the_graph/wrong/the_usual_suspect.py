"""the-usual-suspect: memory was overwritten, and memory is what graphs share."""
# to: runner_f.py


def diagnosis():
    return "one-memory-is-too-little", 12
