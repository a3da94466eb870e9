"""right-is-enough: where the answers are right, nobody asks how they came about."""


def a_batch_is_one_replay_at_the_smallest_size(graphs):
    service = Service(graphs, SIZES)
    for number in range(1, 9):
        assert service.step(users(number)) == service.expected(users(number))


def live_ops_run_live_and_all_of_them(graphs):
    for live in (("recall",), ("remember", "recall")):
        service = Service(graphs, SIZES, live=live)
        for number in (3, 1, 8):
            assert service.step(users(number)) == service.expected(users(number))
