"""passes-without-running: goes through the sizes that are too large, of which there are none."""


def too_large_a_batch_is_refused(graphs):
    service = Service(graphs, SIZES)
    for number in [size for size in SIZES if size > max(SIZES)]:
        with pytest.raises(CaptureError):
            service.step(users(number))
