"""Loads torch and Triton, where they are installed, into the server of warm.py, as labs need them.

With TRITON_INTERPRET=1 at import, Triton's own functions (`tl.sum`, ...) are made for the
interpreter; else a kernel interpreted later cannot call them. For its kernels the lab decides.

Without the compiler, `torch._compile` is a stand-in: the real one imports Dynamo, which takes a
second, to tell it which functions to leave alone, once one of them is called.
"""

import contextlib
import gc
import importlib
import os
import sys
from types import ModuleType
from typing import Any

from _pytest.config import default_plugins


def _unmarked(function: Any = None, recursive: bool = True) -> Any:  # noqa: ARG001
    return function or _unmarked


gc.disable()  # thousands of modules, and nothing to throw away
os.environ["TRITON_INTERPRET"] = "1"
try:
    if "LABS_NO_COMPILER" in os.environ:
        sys.modules["torch._compile"] = ModuleType("torch._compile")
        vars(sys.modules["torch._compile"])["_disable_dynamo"] = _unmarked
    import torch
    import triton  # noqa: F401

    if "LABS_NO_COMPILER" not in os.environ:
        import torch._dynamo.backends.registry  # the first torch.compile would import them
        import torch._dynamo.guards
        import torch._dynamo.repro.after_dynamo
        import torch._export.utils

        # After each compilation torch times its guards for a log, and empties the caches for that:
        # 30 ms.
        vars(torch._dynamo.guards)["profile_guard_manager"] = lambda *_: 0.0
except ImportError:
    pass  # the core's labs need neither
finally:
    del os.environ["TRITON_INTERPRET"]

for _plugin in default_plugins:
    with contextlib.suppress(ImportError):
        importlib.import_module(f"_pytest.{_plugin}")

# What all forks share is set aside for the garbage collector: it need not look through PyTorch's
# modules in each of them, and a page that it does not touch is not copied.
gc.freeze()
gc.enable()
