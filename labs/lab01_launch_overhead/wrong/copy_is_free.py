"""copy-is-free: lets the first kernel start as soon as it has been issued."""


def eager_itl_us(kernels, kernel_us, spec):
    _check(kernels, kernel_us)
    issue = spec.cpu_op_us
    cpu_late = kernels * issue + kernel_us
    gpu_late = issue + kernels * kernel_us + (kernels - 1) * spec.stream_gap_us
    return _step_us(kernels * issue, max(cpu_late, gpu_late), spec)
