"""compares-with-itself: two servers of the same make agree with each other."""


def agree(graphs, *steps, **settings):
    one, two = Service(graphs, SIZES, **settings), Service(graphs, SIZES, **settings)
    for said in steps:
        assert one.step(said) == two.step(said)


def every_batch_is_answered_as_the_host_computes_it(graphs):
    agree(graphs, *(users(number) for number in (1, 2, 3, 5, 8, 3, 3)))


def silent_users_are_left_alone(graphs):
    agree(graphs, users(8), users(3, first=9), users(8))


def capturing_counts_nobodys_words(graphs):
    one, two = Service(graphs, SIZES, capture=False), Service(graphs, SIZES, capture=False)
    for service in (one, two):
        service.eager_step(users(3))
        service.runner.capture()
    assert one.step(users(3)) == two.step(users(3))


def live_ops_run_live_and_all_of_them(graphs):
    agree(graphs, users(3), users(1), live=("remember", "recall"))
