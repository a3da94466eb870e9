"""pins-the-way: asks for the names and the bookkeeping of the one runner that it has seen."""


def a_batch_is_one_replay_at_the_smallest_size(graphs):
    service = Service(graphs, SIZES)
    assert sorted(service.runner.graphs) == list(SIZES)
    assert [len(service.runner.outputs[size]) for size in SIZES] == list(SIZES)
    for number in range(1, 9):
        before = service.device.counters.copy()
        service.step(users(number))
        done = service.device.counters.since(before)
        assert (done.graphs, done.launches) == (1, 2)
