"""any-number-will-do: the right error was raised; what it says is for people to read."""


def too_large_a_batch_is_refused(graphs):
    for number in (9, 10, 17, SLOTS - 1):
        service = Service(graphs, SIZES)
        with pytest.raises(CaptureError):
            service.step(users(number))
