"""What your launch model says of one decode step: two clocks, at six sizes of kernel."""

from collections.abc import Callable
from typing import Any

from mini_engine.model.config import named_shape
from mini_engine.step import run
from mini_engine.step.cards import DeviceSpec, load_spec
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.launch_model import (
    break_even_replays,
    crossover,
    eager_itl_us,
    full_itl_us,
    utilisation,
)

WIDTH = 40  # characters of the longest bar
KERNELS = 310  # that vLLM's Python launches for a step of Qwen3-0.6B
CONTEXT, MANY = 512, 512  # tokens of a request; a batch where what a request adds is seen
CAPTURE_US = 60_000.0  # an assumed capture: what it costs depends on the engine


def main() -> None:
    h200 = load_spec("h200")
    print(f"{KERNELS} kernels on an H200, issued by vLLM (predicted)")
    print("█ the GPU computes, ░ it waits, ▒ nobody has said yet which\n")
    longest = eager_itl_us(KERNELS, 64.0, h200)
    for kernel_us in (2.0, 4.0, 8.0, 16.0, 32.0, 64.0):
        for way, model in (("eager", eager_itl_us), ("graph", full_itl_us)):
            itl_us = written(model, KERNELS, kernel_us, h200)
            busy = written(utilisation, KERNELS, kernel_us, itl_us) if itl_us else None
            if itl_us:
                bar = max(1, round(WIDTH * itl_us / longest))
                share = "" if busy is None else f"{busy:.1%}"
                full = round(bar * (busy or 0))
                picture = "▒" * bar if busy is None else "█" * full + "░" * (bar - full)
                print(f"{kernel_us:4.0f} µs {way} {itl_us:9,.0f} µs {share:>6}  {picture}")
    one, many = work_us(1, h200), work_us(MANY, h200)
    request_us = (many - one) / (MANY - 1)
    batch = crossover(KERNELS, one - request_us, request_us, h200)
    model_name = f"Qwen3-0.6B, {CONTEXT} tokens, equal kernels"
    print(f"\n{model_name}: launching is hidden from batch {batch} on\n")
    print("what a graph is good for, batch by batch:")
    for requests in (1, 8, 64, batch // 2, batch, 2 * batch):
        kernel_us = h200.kernel_floor_us + (one + (requests - 1) * request_us) / KERNELS
        times = eager_itl_us(KERNELS, kernel_us, h200) / full_itl_us(KERNELS, kernel_us, h200)
        print(f"{requests:6} requests {times:5.2f} times as fast  {'█' * round(5 * times)}")
    eager, graph = eager_itl_us(KERNELS, 4.0, h200), full_itl_us(KERNELS, 4.0, h200)
    replays = break_even_replays(CAPTURE_US, eager, graph)
    print(f"\na capture of 60 ms pays after {replays} replays: "
          f"that many tokens, {replays * graph / 1e6:.2f} s of text")  # fmt: skip


def written(function: Callable[..., float], *numbers: Any) -> float | None:
    """Its result, or None where the function is a hole yet."""
    try:
        return function(*numbers)
    except NotImplementedError:
        return None


def work_us(batch: int, spec: DeviceSpec) -> float:
    """What all kernels of a step of Qwen3-0.6B take together, without their floors and gaps."""
    ops = step_ops(named_shape("qwen3-0.6b"), StepShape.decode(batch, CONTEXT), spec.ops)
    return sum(run.kernel_us(op, spec) - spec.kernel_floor_us for op in ops)


if __name__ == "__main__":
    main()
