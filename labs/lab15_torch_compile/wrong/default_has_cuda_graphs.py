"""default-has-cuda-graphs: believes that torch.compile uses CUDA graphs whatever the mode."""


def launches(call, mode):
    if not call.ran:
        raise ValueError("no graph ran in this call: what it launched was not seen")
    if mode == EAGER:
        return sum(kernels(ops, fused=False) for ops in call.ran)
    if mode not in torch._inductor.list_mode_options():
        raise ValueError(f"mode {mode!r}")
    return len(call.ran)
