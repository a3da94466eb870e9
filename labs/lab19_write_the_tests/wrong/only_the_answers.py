"""only-the-answers: looks at what users get, never at what else lies in memory."""


def memory_of_others_is_not_touched(graphs):
    for size in SIZES:
        service = Service(graphs, (size,))
        service.device.upload(np.ones((size, 4), np.float32))
        for _ in range(3):
            assert service.step(users(size)) == service.expected(users(size))
