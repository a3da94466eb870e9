"""sum-of-lanes: adds the CPU's time and the GPU's, as if one waited while the other works."""


def eager_itl_us(kernels, kernel_us, spec):
    _check(kernels, kernel_us)
    issued = kernels * spec.cpu_op_us
    return _step_us(issued, issued + kernels * (kernel_us + spec.stream_gap_us), spec)
