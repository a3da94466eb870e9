"""tidy-after-capture: a capture that cleared its inputs has left them clear."""


def capturing_counts_nobodys_words(graphs):
    service = Service(graphs, SIZES, capture=False)
    said = users(3)
    assert service.eager_step(said) == service.expected(said)
    for _ in range(2):
        service.runner.capture()
        for buffer in service.inputs.view(max(SIZES)).values():
            assert not service.device.read(buffer).any(), "left in the inputs"
        assert service.step(said) == service.expected(said)
