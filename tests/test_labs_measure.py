"""The measuring steps of labs 15 to 17: said before shown, measured on a GPU only, kept in the
ledger. A GPU is stood in for by files of the shape that a real run writes."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from rich.console import Console  # noqa: E402

from labs import ledger, step_timing  # noqa: E402
from labs.step_timing import Race, title  # noqa: E402
from mini_engine.cuda.evidence import Measurement, write_measurement  # noqa: E402
from tests.bench_rows import measured  # noqa: E402
