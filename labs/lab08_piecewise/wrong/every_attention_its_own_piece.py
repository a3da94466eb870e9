"""every-attention-its-own-piece: each splitting op is a cut, and after each cut begins a graph."""


def number_pieces(splits):
    numbers, graph = [], 0
    for split in splits:
        numbers.append(graph + split)
        graph += 2 * split
    return numbers
