"""The CUDA wing: a real model in PyTorch and Triton, eager and as CUDA graphs."""
