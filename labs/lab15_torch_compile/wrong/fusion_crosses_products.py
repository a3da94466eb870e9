"""fusion-crosses-products: believes that a fused graph is one kernel."""


def kernels(ops, fused):
    return min(1, len(ops)) if fused else len(ops)
