"""only-upwards: goes through the batches from small to large, once."""


def a_batch_is_one_replay_at_the_smallest_size(graphs):
    service, moved = Service(graphs, SIZES), {}
    for number in BATCHES:
        before = service.device.counters.copy()
        service.step(users(number))
        done = service.device.counters.since(before)
        assert (done.graphs, done.kernels) == (1, len(OPS))
        moved[number] = done.bytes
    assert moved[1] < moved[2] < moved[4] < moved[8]
    for number in moved:
        assert moved[number] == moved[min(size for size in SIZES if size >= number)]
