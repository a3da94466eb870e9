"""fusion-crosses-breaks: glues the graphs of a call together, as if Python had not run between."""


def launches(call, mode):
    if not call.ran:
        raise ValueError("no graph ran in this call: what it launched was not seen")
    ops = [name for graph in call.ran for name in graph]
    if mode == EAGER:
        return kernels(ops, fused=False)
    modes = torch._inductor.list_mode_options()
    if mode not in modes:
        raise ValueError(f"mode {mode!r}")
    return 1 if modes[mode].get("triton.cudagraphs") else kernels(ops, fused=True)
