"""alternating-is-balanced: one, other, one, other."""


def balanced_order(one, other, rounds):
    if rounds < 2 or rounds % 2:
        raise ValueError(f"{rounds} rounds")
    return [one, other] * rounds
