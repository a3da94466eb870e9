"""only-shapes: as many answers as users, of the right shape; what they say is not looked at."""


def every_batch_is_answered_as_the_host_computes_it(graphs):
    service = Service(graphs, SIZES)
    for number in range(1, 9):
        assert set(service.step(users(number))) == set(users(number))


def silent_users_are_left_alone(graphs):
    service = Service(graphs, SIZES)
    for said in (users(8), users(3, first=9), users(8)):
        assert len(service.step(said)) == len(said)


def capturing_counts_nobodys_words(graphs):
    service = Service(graphs, SIZES)
    service.runner.capture()
    assert len(service.step(users(3))) == 3


def live_ops_run_live_and_all_of_them(graphs):
    service = Service(graphs, SIZES, live=("remember", "recall"))
    since = len(service.device.timeline)
    assert len(service.step(users(3))) == 3
    ran = [event.category for event in service.device.timeline[since:] if event.lane == "GPU"]
    assert ran.count("kernel") == 2
