"""host_memory.py: what a model takes is known before it is loaded, and so is what is free."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mini_engine.engine.generation import limits_for
from mini_engine.model.config import named_shape
from mini_engine.sim import host_memory
from mini_engine.sim.host_memory import check_room, free_bytes, needed_bytes

QWEN = named_shape("qwen3-0.6b")
LIMITS = replace(limits_for(QWEN, 5), num_blocks=21)


def test_a_model_needs_its_weights_in_float32_and_the_cache_of_its_prompts() -> None:
    needed = needed_bytes(QWEN, LIMITS)
    assert needed.weights == 4 * QWEN.num_parameters
    assert needed.kv_cache == 21 * 16 * 28 * 2 * 8 * 128 * 4
    assert needed.weights + needed.kv_cache < needed.total < 4e9
    assert str(needed).startswith("3.4 GB of memory: 2.4 GB for its weights in float32, 0.1 GB for")


def test_a_cache_in_fp8_takes_a_quarter() -> None:
    plain, fp8 = needed_bytes(QWEN, LIMITS), needed_bytes(QWEN, LIMITS, "fp8")
    assert 4 * fp8.kv_cache == plain.kv_cache


def test_a_model_that_finds_no_room_is_refused_with_both_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needed = needed_bytes(QWEN, LIMITS)
    monkeypatch.setattr(host_memory, "free_bytes", lambda: 3 * 10**9)
    with pytest.raises(ValueError, match=r"needs 3.4 GB of memory: .*; 3.0 GB are free on this"):
        check_room(QWEN, needed, "h200", 10**12)
    monkeypatch.setattr(host_memory, "free_bytes", lambda: None)
    check_room(QWEN, needed, "h200", 10**12)
    with pytest.raises(ValueError, match=r"the simulated rtx1 has 2.0 GB: name a larger card"):
        check_room(QWEN, needed, "rtx1", 2 * 10**9)


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, None),
        ({"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    7 kB\n"}, 7 * 1024),
        # a container's limit: of the 50 in use, 10 are files that are given up when needed
        (
            {
                "proc/meminfo": "MemAvailable: 7 kB",
                "proc/self/cgroup": "0::/of/the/host\n",
                "groups/memory.max": "100\n",
                "groups/memory.current": "50\n",
                "groups/memory.stat": "anon 40\ninactive_file 10\n",
            },
            60,
        ),
        ({"proc/self/cgroup": "0::/a", "groups/a/memory.max": "max"}, None),
        (
            {
                "proc/self/cgroup": "5:cpu:/a\n4:memory:/a\n0::/\n",
                "groups/memory/a/memory.limit_in_bytes": "100",
                "groups/memory/a/memory.usage_in_bytes": "130",
            },
            0,
        ),
    ],
)
def test_what_is_free_is_the_least_that_the_system_tells(
    files: dict[str, str], free: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(host_memory, "PROC", tmp_path / "proc")
    monkeypatch.setattr(host_memory, "CGROUPS", tmp_path / "groups")
    assert free_bytes() == free
