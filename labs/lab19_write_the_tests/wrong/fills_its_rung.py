"""fills-its-rung: only batches of 1, 2, 4 and 8, in which no row is padding."""


def every_batch_is_answered_as_the_host_computes_it(graphs):
    service = Service(graphs, SIZES)
    for step, number in enumerate([1, 2, 4, 8, 8, 4, 4, 2, 1]):
        said = users(number, says=step)
        assert service.step(said) == service.expected(said)


def silent_users_are_left_alone(graphs):
    for number in SIZES:
        service = Service(graphs, SIZES)
        for said in (users(8), users(number, first=9), users(8, says=5.0)):
            assert service.step(said) == service.expected(said)


def live_ops_run_live_and_all_of_them(graphs):
    for live in (("recall",), ("forget", "remember", "recall")):
        service = Service(graphs, SIZES, live=live)
        since, said = len(service.device.timeline), users(4)
        assert service.step(said) == service.expected(said)
        ran = [event for event in service.device.timeline[since:] if event.lane == "GPU"]
        assert [event.name for event in ran if event.category == "kernel"] == list(live)
