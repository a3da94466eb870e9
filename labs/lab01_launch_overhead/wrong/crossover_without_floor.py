"""crossover-without-floor: compares launching with the bytes alone; kernels have a floor and gaps."""


def crossover(kernels, base_us, request_us, spec):
    return max(1, math.ceil((kernels * spec.cpu_op_us - base_us) / request_us))
