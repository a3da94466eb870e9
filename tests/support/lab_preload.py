"""Loads torch and Triton into the server of tests/support/lab_server.py, as labs need them.

With TRITON_INTERPRET=1 at import, Triton's own functions (`tl.sum`, ...) are made for the
interpreter; else a kernel interpreted later cannot call them. For its kernels the lab decides.
"""

import gc
import os

os.environ["TRITON_INTERPRET"] = "1"
try:
    import torch._dynamo  # noqa: F401  (each process's first custom op would import it)
    import triton  # noqa: F401
finally:
    del os.environ["TRITON_INTERPRET"]

# What all forks share is set aside for the garbage collector: it need not look through PyTorch's
# modules in each of them, and a page that it does not touch is not copied.
gc.collect()
gc.freeze()
