"""default-has-cuda-graphs: believes that torch.compile uses CUDA graphs whatever the mode."""


def launches(call, mode):
    if not call.ran:
        raise ValueError("no graph ran in this call: what it launched was not seen")
    modes = torch._inductor.list_mode_options()
    if mode == EAGER:
        return sum(len(ops) for ops in call.ran)
    if mode not in modes:
        raise ValueError(f"mode {mode!r}")
    return len(call.ran)
