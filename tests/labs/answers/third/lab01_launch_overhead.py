"""A third right way: chains as lists, a batch found by halving, replays rounded by hand."""


def eager_itl_us(kernels, kernel_us, spec):
    if kernels <= 0:
        raise ValueError("a step has a kernel at least")
    if not kernel_us > 0:
        raise ValueError("a kernel takes time")
    whole = (kernel_us + spec.stream_gap_us) * (kernels - 1)
    last_issued = sum([spec.cpu_op_us] * kernels)
    # the last kernel starts when all others behind the first have run, or when it is issued
    last_starts = sorted((last_issued, _first_start_us(spec.cpu_op_us, spec) + whole))[1]
    return _step_us(last_issued, last_starts + kernel_us, spec)


def full_itl_us(kernels, kernel_us, spec):
    _check(kernels, kernel_us)
    ends = [_first_start_us(graph_launch_us(kernels, spec), spec) + kernel_us]
    while len(ends) < kernels:
        ends.append(ends[-1] + spec.graph_gap_us + kernel_us)
    return _step_us(graph_launch_us(kernels, spec), ends[-1], spec)


def utilisation(kernels, kernel_us, itl_us):
    one_kernel = kernel_us / itl_us
    return one_kernel * kernels


def crossover(kernels, base_us, request_us, spec):
    def hidden(batch):
        around = spec.kernel_floor_us + spec.stream_gap_us
        return base_us + batch * request_us >= kernels * (spec.cpu_op_us - around)

    high = 1
    while not hidden(high):
        high *= 2
    low = high // 2  # launching shows at low, and is hidden at high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if hidden(middle) else (middle, high)
    return high


def break_even_replays(capture_us, eager_us, graph_us):
    if graph_us >= eager_us:
        return math.inf
    quotient = capture_us / (eager_us - graph_us)
    return int(quotient) if quotient == int(quotient) else int(quotient) + 1
