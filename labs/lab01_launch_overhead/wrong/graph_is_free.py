"""graph-is-free: a graph removes the gaps between kernels, too."""


def full_itl_us(kernels, kernel_us, spec):
    start = _first_start_us(graph_launch_us(kernels, spec), spec)
    return _around_us(spec) + start + kernels * kernel_us
