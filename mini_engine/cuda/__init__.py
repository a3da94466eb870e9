"""The real engine: PyTorch, Triton and CUDA graphs on a GPU; the same code on a CPU, emulated."""
