"""Another right way: eager played kernel by kernel, the crossover searched for."""


def eager_itl_us(kernels, kernel_us, spec):
    _check(kernels, kernel_us)
    issued = 0.0
    free = spec.kernel_floor_us + spec.stream_gap_us
    for _ in range(kernels):
        issued += spec.cpu_op_us
        end = max(issued, free) + kernel_us
        free = end + spec.stream_gap_us
    ready = max(end, issued + spec.ahead_us)
    return spec.host_step_us + spec.copy_us + ready + spec.sync_us


def full_itl_us(kernels, kernel_us, spec):
    if not (kernels > 0 and kernel_us > 0):
        raise ValueError("nothing to run")
    launch = spec.graph_launch_us + kernels * spec.graph_node_ns * 1e-3
    first = max(launch, spec.kernel_floor_us + spec.stream_gap_us)
    rest = (kernels - 1) * (kernel_us + spec.graph_gap_us)
    ready = max(first + kernel_us + rest, launch + spec.ahead_us)
    return spec.host_step_us + spec.copy_us + ready + spec.sync_us


def utilisation(kernels, kernel_us, itl_us):
    return 1 - (itl_us - kernel_us * kernels) / itl_us


def crossover(kernels, base_us, request_us, spec):
    hidden = spec.cpu_op_us - spec.kernel_floor_us - spec.stream_gap_us
    if base_us + request_us >= kernels * hidden:
        return 1
    return math.ceil(kernels * hidden / request_us - base_us / request_us)


def break_even_replays(capture_us, eager_us, graph_us):
    if eager_us <= graph_us:
        return float("inf")
    whole, rest = divmod(capture_us, eager_us - graph_us)
    return int(whole) + (rest > 0)
