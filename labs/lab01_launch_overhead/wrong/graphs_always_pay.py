"""graphs-always-pay: divides without asking whether a replay saves anything."""


def break_even_replays(capture_us, eager_us, graph_us):
    return math.ceil(capture_us / max(abs(eager_us - graph_us), 1e-9))
