"""These tests run Triton's interpreter, which a process has on for all kernels or off for all.

So an ordinary run does not collect them: tests/cuda/kernels/test_interpreter.py runs them in
a process of their own. By hand: TRITON_INTERPRET=1 python -m pytest tests/cuda/kernels/interpreted
"""

import os

collect_ignore_glob = ["test_*.py"]
if os.environ.get("TRITON_INTERPRET") == "1":
    from labs.support.interpreter import install_bf16_guard

    install_bf16_guard()
    collect_ignore_glob = []
