"""any-error-will-do: something was raised, so it was refused."""


def too_large_a_batch_is_refused(graphs):
    service = Service(graphs, SIZES)
    with pytest.raises(Exception):
        service.step(users(9))
