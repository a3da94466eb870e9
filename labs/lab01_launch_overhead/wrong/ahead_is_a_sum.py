"""ahead-is-a-sum: adds what the engine does ahead, as if the GPU waited for it."""


def full_itl_us(kernels, kernel_us, spec):
    _check(kernels, kernel_us)
    launch = graph_launch_us(kernels, spec)
    ended = _first_start_us(launch, spec) + graph_us(kernels, kernel_us, spec)
    return spec.host_step_us + spec.copy_us + ended + spec.ahead_us + spec.sync_us
