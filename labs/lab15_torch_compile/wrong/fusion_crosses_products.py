"""fusion-crosses-products: believes that a fused graph is one kernel."""


def launches(call, mode):
    if not call.ran:
        raise ValueError("no graph ran in this call: what it launched was not seen")
    modes = torch._inductor.list_mode_options()
    if mode == EAGER:
        return sum(len(ops) for ops in call.ran)
    if mode not in modes:
        raise ValueError(f"mode {mode!r}")
    if modes[mode].get("triton.cudagraphs"):
        return len(call.ran)
    return sum(min(1, len(ops)) for ops in call.ran)
