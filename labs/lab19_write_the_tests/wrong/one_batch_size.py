"""one-batch-size: three users, replayed as one graph; so will the others be."""


def a_batch_is_one_replay_at_the_smallest_size(graphs):
    service = Service(graphs, SIZES)
    before = service.device.counters.copy()
    service.step(users(3))
    assert service.device.counters.since(before).graphs == 1
