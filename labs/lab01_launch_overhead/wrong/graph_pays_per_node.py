"""graph-pays-per-node: inside a graph every kernel still costs the CPU a launch."""


def full_itl_us(kernels, kernel_us, spec):
    _check(kernels, kernel_us)
    issued = kernels * spec.cpu_launch_us
    return _step_us(issued, max(issued + kernel_us, graph_us(kernels, kernel_us, spec)), spec)
