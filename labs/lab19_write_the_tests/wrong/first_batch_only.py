"""first-batch-only: every batch on a fresh server; what a second one would get is not asked."""


def every_batch_is_answered_as_the_host_computes_it(graphs):
    for number in range(1, 9):
        service = Service(graphs, SIZES)
        assert service.step(users(number)) == service.expected(users(number))
