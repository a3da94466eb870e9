"""These tests run Triton's interpreter, which a process has on for all kernels or off for all.

So an ordinary run does not collect them: tests/cuda/kernels/test_interpreter.py runs them in
processes of their own. By hand: TRITON_INTERPRET=1 python -m pytest tests/cuda/kernels/interpreted
"""

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
