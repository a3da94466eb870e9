"""equal-sizes-are-one-size: believes that dynamic=True knows which sizes vary."""


def compiled_step(backend):
    return torch.compile(repaired_step, backend=backend, fullgraph=True, dynamic=True)
