"""sum-of-lanes: adds the CPU's time and the GPU's, as if one waited while the other works."""


def eager_itl_us(kernels, kernel_us, spec):
    return _around_us(spec) + kernels * (spec.cpu_op_us + kernel_us + spec.stream_gap_us)
