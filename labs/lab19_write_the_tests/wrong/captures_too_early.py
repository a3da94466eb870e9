"""captures-too-early: captures before anybody has spoken, as every test set-up does."""


def capturing_counts_nobodys_words(graphs):
    service = Service(graphs, SIZES)
    for said in (users(3), users(3)):
        assert service.step(said) == service.expected(said)
