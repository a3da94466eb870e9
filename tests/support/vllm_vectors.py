"""Inputs and answers of vLLM 0.33's own Python functions: `vllm_0_33.json`, beside this file.

Every answer was computed by vLLM 0.33.0, without a GPU. Where vLLM raises (ValueError, or the
AssertionError of a configuration check), this project raises ValueError.

`vllm_0_33_scheduler.json.gz` holds the steps of its scheduler. Its `_meta` says what each field is.
"""

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent
_FILE = json.loads((_FOLDER / "vllm_0_33.json").read_text(encoding="utf-8"))
VLLM_VERSION: str = _FILE["_meta"]["vllm_version"]
assert VLLM_VERSION == "0.33.0", "the tests' words speak for vLLM 0.33.0: read them again"


def vectors(kind: str) -> list[Any]:
    """All vectors of one kind: "ladder", "modes", "dispatch", … There is at least one."""
    found: list[Any] = _FILE[kind]
    assert found, f"no vectors of kind {kind}"
    return found


@cache
def _scheduler_file() -> Any:
    return json.loads(gzip.decompress(_FOLDER.joinpath("vllm_0_33_scheduler.json.gz").read_bytes()))


def scheduled_workloads(kind: str) -> list[Any]:
    """Workloads and the steps of vLLM's scheduler: "scheduler", or "prefix_cache" (with it on)."""
    file = _scheduler_file()
    assert file["_meta"]["vllm_version"] == VLLM_VERSION
    found: list[Any] = file[kind]
    assert found, f"no workloads of kind {kind}"
    return found


def label(vector: Any) -> str:
    """A short name for a vector, for `pytest.mark.parametrize(…, ids=label)`."""
    if not isinstance(vector, dict):
        return str(vector)
    inputs = vector.get("inputs", vector)
    return vector.get("name") or "-".join(str(value) for value in inputs.values())[:80]
