"""counts-graphs-alone: one graph a step, so nothing else ran."""


def a_batch_is_one_replay_at_the_smallest_size(graphs):
    service, moved = Service(graphs, SIZES), {}
    for number in (*BATCHES, *reversed(BATCHES)):
        before = service.device.counters.copy()
        service.step(users(number))
        done = service.device.counters.since(before)
        assert done.graphs == 1
        size = min(size for size in SIZES if size >= number)
        assert moved.setdefault(size, done.bytes) == done.bytes
    assert moved[1] < moved[2] < moved[4] < moved[8]
