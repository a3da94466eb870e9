"""A third suite: small, with helpers, and answers held to an eager twin where that is possible."""


def agrees(service, said):
    answered = service.step(said)
    wanted = service.expected(said)
    for slot, answer in answered.items():
        assert answer == wanted[slot], (slot, answer, wanted[slot])
    assert answered.keys() == wanted.keys()


def every_batch_is_answered_as_the_host_computes_it(graphs):
    service, twin = Service(graphs, SIZES), Service(graphs, SIZES, capture=False)
    for number in (8, 1, 7, 2, 6, 3, 5, 4, 4, 5, 5, 3, 8):
        said = users(number, first=3, says=number / 2)
        assert service.step(said) == twin.eager_step(said) == twin.expected(said)
        said = {SLOTS - slot: -word for slot, word in said.items()}  # others, the highest first
        assert service.step(said) == twin.eager_step(said) == twin.expected(said)


def silent_users_are_left_alone(graphs):
    for speaking in range(1, 8):
        for rush in (users(4), users(8, first=SLOTS - 8)):
            service = Service(graphs, SIZES)
            agrees(service, rush)
            agrees(service, users(speaking, first=9))
            agrees(service, rush)


def capturing_counts_nobodys_words(graphs):
    service = Service(graphs, SIZES, capture=False)
    talk = users(8)
    service.eager_step(talk)
    service.expected(talk)
    service.runner.capture()
    agrees(service, talk)
    agrees(service, users(1, first=8))
    service.runner.capture()
    agrees(service, talk)


def a_batch_is_one_replay_at_the_smallest_size(graphs):
    service = Service(graphs, SIZES)
    bytes_of = {}
    for number in [*SIZES, 3, 5, 6, 7]:
        counters = service.device.counters.copy()
        service.step(users(number))
        counters = service.device.counters.since(counters)
        assert vars(counters)["graphs"] == 1
        assert vars(counters)["kernels"] == len(OPS)
        bytes_of[number] = counters.bytes
    assert len({bytes_of[size] for size in SIZES}) == len(SIZES)
    assert bytes_of[3] == bytes_of[4]
    assert {bytes_of[5], bytes_of[6], bytes_of[7]} == {bytes_of[8]}


def too_large_a_batch_is_refused(graphs):
    for number in (9, 15):
        with pytest.raises(CaptureError) as caught:
            Service(graphs, SIZES).step(users(number))
        assert f"{number}" in f"{caught.value}"


def memory_of_others_is_not_touched(graphs):
    for size in SIZES[::-1]:
        service = Service(graphs, (size,))
        rows = np.random.default_rng(size).normal(size=(8, size, 4)).astype(np.float32)
        buffers = [service.device.upload(part) for part in rows]
        agrees(service, users(size))
        after_one = service.device.memory.allocated_bytes()
        agrees(service, users(size))
        agrees(service, users(1))
        assert service.device.memory.allocated_bytes() <= after_one
        for part, buffer in zip(rows, buffers, strict=True):
            np.testing.assert_array_equal(service.device.read(buffer), part)


def live_ops_run_live_and_all_of_them(graphs):
    for live in (("forget",), ("recall",), ("forget", "recall"), ("remember", "recall"), OPS[1:4]):
        service = Service(graphs, SIZES, live=live)
        for number in (2, 7):
            begin = len(service.device.timeline)
            agrees(service, users(number, says=3.0))
            gpu = [e for e in service.device.timeline[begin:] if e.lane == "GPU"]
            ran = iter(event for event in gpu if event.category != "copy")
            for op in OPS:
                event = next(ran)
                assert event.name == op
                assert event.category == ("kernel" if op in live else "node")
            assert next(ran, None) is None
