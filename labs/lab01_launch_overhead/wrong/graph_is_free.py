"""graph-is-free: a graph removes the gaps between kernels, too."""


def full_itl_us(kernels, kernel_us, spec):
    _check(kernels, kernel_us)
    launch = graph_launch_us(kernels, spec)
    return _step_us(launch, _first_start_us(launch, spec) + kernels * kernel_us, spec)
