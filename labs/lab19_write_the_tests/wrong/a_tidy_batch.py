"""a-tidy-batch: a batch is the users of slots 1, 2, 3 and so on; who else should it be?"""


def every_batch_is_answered_as_the_host_computes_it(graphs):
    service = Service(graphs, SIZES)
    for step, number in enumerate((*BATCHES, *reversed(BATCHES))):
        said = users(number, says=step)
        assert service.step(said) == service.expected(said)


def silent_users_are_left_alone(graphs):
    for number in BATCHES:
        service = Service(graphs, SIZES)
        for said in (users(8), users(number, first=9), users(8)):
            assert service.step(said) == service.expected(said)
