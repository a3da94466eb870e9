"""one-is-like-many: believes that a symbol stands for every size, 1 among them."""


def signature(step):
    sizes = {tensor.shape[0] for tensor in step.values()}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(f"sizes {sizes}")
    return Signature(TOKENS, tuple(described(name, t, TOKENS) for name, t in step.items()))
