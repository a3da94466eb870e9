"""Loads torch and Triton, where they are installed, into the server of warm.py, as labs need them.

With TRITON_INTERPRET=1 at import, Triton's own functions (`tl.sum`, ...) are made for the
interpreter; else a kernel interpreted later cannot call them. For its kernels the lab decides.
"""

import contextlib
import gc
import importlib
import os

from _pytest.config import default_plugins

os.environ["TRITON_INTERPRET"] = "1"
try:
    import torch
    import triton  # noqa: F401

    if "LABS_NO_COMPILER" in os.environ:
        raise ImportError
    import torch._dynamo.backends.registry  # the first custom op of a process would import it
    import torch._dynamo.guards
    import torch._export.utils  # and the first torch.compile this

    # After each compilation torch times its guards for a log, and empties the caches for that:
    # 30 ms.
    vars(torch._dynamo.guards)["profile_guard_manager"] = lambda *_: 0.0
except ImportError:
    pass  # the core's labs need neither, and most others no compiler
finally:
    del os.environ["TRITON_INTERPRET"]

for _plugin in default_plugins:
    with contextlib.suppress(ImportError):
        importlib.import_module(f"_pytest.{_plugin}")

# What all forks share is set aside for the garbage collector: it need not look through PyTorch's
# modules in each of them, and a page that it does not touch is not copied.
gc.collect()
gc.freeze()
