"""the-second-size-is-free: believes that torch.compile finds out about sizes at no cost."""


def compiled_step(backend):
    return torch.compile(repaired_step, backend=backend, fullgraph=True)
