"""fusion-crosses-breaks: glues the graphs of a call together, as if Python had not run between."""


def launches(call, mode):
    if not call.ran:
        raise ValueError("no graph ran in this call: what it launched was not seen")
    modes = torch._inductor.list_mode_options()
    if mode == EAGER:
        return sum(len(ops) for ops in call.ran)
    if mode not in modes:
        raise ValueError(f"mode {mode!r}")
    if modes[mode].get("triton.cudagraphs"):
        return 1
    whole = [name for ops in call.ran for name in ops]
    stretches = groupby(whole, key=PRODUCTS.__contains__)
    return sum(len(list(stretch)) if is_product else 1 for is_product, stretch in stretches)
