"""What your launch model says of one decode step: two clocks, at six sizes of kernel."""

from mini_engine.predict.hardware import load_spec
from mini_engine.predict.launch_model import (
    break_even_replays,
    crossover,
    eager_itl_us,
    full_itl_us,
    utilisation,
)

WIDTH = 40  # characters of the longest bar
KERNELS = 257
CAPTURE_US = 60_000.0  # an assumed capture: what it costs depends on the engine


def main() -> None:
    h200 = load_spec("h200")
    print(f"{KERNELS} kernels on an H200, issued by vLLM (predicted)")
    print("█ the GPU computes, ░ it waits\n")
    longest = eager_itl_us(KERNELS, 64.0, h200)
    for kernel_us in (2.0, 4.0, 8.0, 16.0, 32.0, 64.0):
        for way, itl_us in (
            ("eager", eager_itl_us(KERNELS, kernel_us, h200)),
            ("graph", full_itl_us(KERNELS, kernel_us, h200)),
        ):
            busy = utilisation(KERNELS, kernel_us, itl_us)
            bar = max(1, round(WIDTH * itl_us / longest))
            full = round(bar * busy)
            picture = "█" * full + "░" * (bar - full)
            print(f"{kernel_us:4.0f} µs {way} {itl_us:9,.0f} µs {busy:6.1%}  {picture}")
    print(f"\nlaunching is hidden from batch {crossover(KERNELS, 1100.0, 20.0, h200)} on")
    eager, graph = eager_itl_us(KERNELS, 4.0, h200), full_itl_us(KERNELS, 4.0, h200)
    print(f"a capture of 60 ms pays after {break_even_replays(CAPTURE_US, eager, graph)} replays")


if __name__ == "__main__":
    main()
