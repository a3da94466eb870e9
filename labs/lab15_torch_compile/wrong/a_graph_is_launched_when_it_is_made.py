"""a-graph-is-launched-when-it-is-made: counts the graphs that a call made, if it made any."""


def launches(call, mode):
    if not call.ran:
        raise ValueError("no graph ran in this call: what it launched was not seen")
    modes = torch._inductor.list_mode_options()
    if mode == EAGER:
        return sum(len(ops) for ops in call.ran)
    if mode not in modes:
        raise ValueError(f"mode {mode!r}")
    if modes[mode].get("triton.cudagraphs"):
        return len(call.graphs or call.ran)
    kernels = 0
    for ops in call.ran:
        for is_product, stretch in groupby(ops, key=PRODUCTS.__contains__):
            kernels += len(list(stretch)) if is_product else 1
    return kernels
