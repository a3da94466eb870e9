"""What one pool for all rungs saves, and why the largest is captured first.

In: a shape, a device spec, a ladder. Out: bytes of graph memory for three ways to capture it.

    ways = pool_bytes(named_shape("qwen3-0.6b"), load_spec("h200"), [1, 2, 4, …, 512])
    ways.largest_first < ways.ascending < ways.apart

The figures come from the simulated allocator on a device that only counts costs: the real forward
pass and its real buffers without arithmetic. What the driver keeps for the nodes is left out, since
it does not depend on pools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.engine.batch import SchedulerLimits
from mini_engine.model.config import ModelConfig
from mini_engine.sim.device import Device
from mini_engine.sim.runner import SimRunner
from mini_engine.step.cards import DeviceSpec


@dataclass(frozen=True)
class PoolBytes:
    """Graph memory of a whole ladder, in bytes."""

    largest_first: int  # one pool: small rungs fit into the memory that the large one freed
    ascending: int  # one pool, but what was freed is never large enough
    apart: int  # a pool for each rung


def pool_bytes(config: ModelConfig, spec: DeviceSpec, sizes: Sequence[int]) -> PoolBytes:
    """Capture the ladder as full graphs in the three ways."""
    ladder, top = sorted(sizes), max(sizes)
    limits = SchedulerLimits(
        max_num_seqs=top, max_num_batched_tokens=top, num_blocks=2, block_size=16, max_model_len=16
    )

    def captured(order: Sequence[int], *, share_pool: bool = True) -> int:
        device, dispatcher = Device(spec, compute=False), GraphDispatcher("FULL", ladder, top)
        runner = SimRunner(device, config, None, limits, dispatcher, share_pool=share_pool)
        return sum(rung.pool_growth_bytes for rung in runner.capture(order).rungs)

    largest_first = ladder[::-1]
    return PoolBytes(
        captured(largest_first), captured(ladder), captured(largest_first, share_pool=False)
    )
