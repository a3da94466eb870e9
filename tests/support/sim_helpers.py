"""A small device with round figures, for tests that look at one thing."""

from __future__ import annotations

from dataclasses import replace

from mini_engine.sim.device import Device
from mini_engine.step.cards import DeviceSpec, load_spec


def round_spec() -> DeviceSpec:
    """Figures that can be added up in the head: µs, and 1,000 bytes a µs."""
    return replace(
        load_spec("h200"),
        copy_bandwidth_gb_s=1.0,
        product_gb_s=1.0,
        attention_gb_s=1.0,
        product_tflops=1.0,
        cpu_op_us=5.0,
        live_op_us=5.0,
        stream_gap_us=2.0,
        graph_gap_us=1.0,
        kernel_floor_us=0.5,
        graph_launch_us=3.0,
        graph_node_ns=100.0,
        queue_depth=1024,
        copy_us=4.0,
        sync_us=6.0,
        host_step_us=50.0,
        ahead_us=0.0,
        request_us=0.0,
        capture_node_us=1.0,
        instantiate_node_us=2.0,
        graph_node_bytes=1000,
    )


def small_device(*, compute: bool = True, record: bool = False, megabytes: int = 64) -> Device:
    """A device with `round_spec` and little memory."""
    return Device(round_spec(), compute=compute, record=record, memory_bytes=megabytes * 2**20)
