"""graph-pays-per-node: inside a graph every kernel still costs the CPU a launch."""


def full_itl_us(kernels, kernel_us, spec):
    chain = kernels * spec.cpu_launch_us + kernel_us
    return _around_us(spec) + max(chain, graph_us(kernels, kernel_us, spec))
