"""fills-its-rung: only batches of 1, 2, 4 and 8, in which no row is padding."""


def every_batch_is_answered_as_the_host_computes_it(graphs):
    service = Service(graphs, SIZES)
    for step, number in enumerate([1, 2, 4, 8, 8, 4, 4, 2, 1]):
        said = dict(reversed(users(number, first=step + 1, says=step).items()))
        assert service.step(said) == service.expected(said)


def silent_users_are_left_alone(graphs):
    for number in SIZES:
        for rush_hour in (users(8), users(8, first=16)):
            service = Service(graphs, SIZES)
            for said in (rush_hour, users(number, first=9), rush_hour):
                assert service.step(said) == service.expected(said)


def memory_of_others_is_not_touched(graphs):
    for size in SIZES:
        service = Service(graphs, (size,))
        weights = np.ones((size, 4), np.float32)
        adapters = [service.device.upload(weights) for _ in range(4)]
        allocated = service.device.memory.allocated_bytes()
        for _ in range(3):
            service.step(users(size))
        assert all(np.array_equal(service.device.read(a), weights) for a in adapters)
        assert service.device.memory.allocated_bytes() == allocated


def live_ops_run_live_and_all_of_them(graphs):
    for live in (("recall",), ("forget", "remember", "recall")):
        service = Service(graphs, SIZES, live=live)
        since, said = len(service.device.timeline), users(4)
        assert service.step(said) == service.expected(said)
        ran = [event for event in service.device.timeline[since:] if event.lane == "GPU"]
        assert [event.name for event in ran if event.category == "kernel"] == list(live)
