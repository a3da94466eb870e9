"""slot-zero-is-sacred: whatever nobody owns, nobody may write to."""


def silent_users_are_left_alone(graphs):
    for number in range(1, 8):
        service = Service(graphs, SIZES)
        for said in (users(8), users(number, first=9), users(8, says=5.0)):
            assert service.step(said) == service.expected(said)
        assert not service.device.read(service.cache)[0].any(), "slot 0"
