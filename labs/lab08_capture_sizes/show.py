"""Your ladder on the trace that ships with the engine: vLLM's rule, and the best rungs for it."""

from collections import Counter
from functools import cache

from labs.support.growth import ONE_SIZE
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.ladder import CaptureLadder, best_ladders
from mini_engine.model.config import named_shape
from mini_engine.serving.ladder_cost import LadderCosts, size_server
from mini_engine.serving.replay import replay
from mini_engine.serving.request_trace import SHIPPED_TRACE, read_trace
from mini_engine.step.cards import load_spec
from mini_engine.step.kernels import StepShape
from mini_engine.step.step_model import StepModel

SEQS, TOKENS = 256, 8192
SHAPE, SPEC, MODE = named_shape("qwen3-0.6b"), load_spec("h200"), "FULL_AND_PIECEWISE"
COSTS = LadderCosts(SHAPE, SPEC, MODE, SEQS)
MODEL = StepModel(SHAPE, SPEC)


FEW = Counter({1: 40, 3: 30, 5: 20, 9: 6, 14: 3, 30: 1})  # rows of a step -> how many such steps


def main() -> None:
    small()
    large()


def small() -> None:
    """A hundred steps: what a ladder does with each size, what it wastes, and which is best."""
    ladder = CaptureLadder((1, 4, 16, 32))
    print(f"100 steps on the ladder {', '.join(map(str, ladder))}; █ a row in use, ░ padding")
    for rows, count in FEW.items():
        rung = ladder.rung(rows) or 0
        print(f"{count:4} of {rows:2} rows at rung {rung:2}  {'█' * rows}{'░' * (rung - rows)}")
    print(f"padded rows: {ladder.waste(FEW).padded_rows}", end=", ")
    print(f"{ladder.waste(FEW).wasted_fraction:.0%} of all that are computed")
    best = best_ladders(FEW, 4)[-1]
    print(f"the best four rungs for them: {', '.join(map(str, best))}, "
          f"{best.waste(FEW).wasted_fraction:.0%} padding\n")  # fmt: skip


def large() -> None:
    own = CaptureLadder(default_capture_sizes(SEQS, TOKENS))
    steps = served(own)
    print(f"{sum(steps.values()):,} steps of {SHIPPED_TRACE.name} (simulated) with at most "
          f"{own.top} rows; the batch sizes that came most often:")  # fmt: skip
    for rows, count in steps.most_common(5):
        print(f"   {rows:3} rows {count:6,} times, at rung {own.rung(rows)}")
    print("\nladder         rungs   padded rows         time lost  eager  graphs hold  the rungs")
    tell("before: one size", CaptureLadder(ONE_SIZE), steps)
    tell("vLLM's rule", own, steps)
    for ladder in best_ladders(steps, 8, top=own.top)[1:]:
        tell(f"the best {len(ladder)}", ladder, steps)
    tell("1, 2, 4 … 64", CaptureLadder(2**i for i in range(7)), steps)

    print("\nvLLM's rule for others:")
    for seqs in (100, 20, 6):
        sizes = default_capture_sizes(seqs, TOKENS)
        print(f"   {seqs:3} requests: {len(sizes)} sizes, the last of them {sizes[-4:]}")
    print("   6 requests of 7 tokens: "
          f"{default_capture_sizes(6, TOKENS, num_speculative_tokens=6)}")  # fmt: skip


def served(own: CaptureLadder) -> Counter[int]:
    """Rows of a step before padding -> steps, of those that fit the ladder's top."""
    server = size_server(SHAPE, SPEC, MODE, own, max_num_seqs=SEQS)
    requests = read_trace(SHIPPED_TRACE)
    report = replay(requests, StepModel(SHAPE, SPEC), server.limits, server.dispatcher)
    steps: Counter[int] = Counter()
    for ran, (count, _) in report.ran.items():
        if ran.rows <= own.top:
            steps[ran.rows] += count
    return steps


def tell(name: str, ladder: CaptureLadder, steps: Counter[int]) -> None:
    waste, held_mb = ladder.waste(steps), COSTS.of(list(ladder)).memory_bytes / 1e6
    rungs = ", ".join(map(str, ladder)) if len(ladder) < 10 else ""
    took = sum(count * step_us(rows, ladder.rung(rows)) for rows, count in steps.items())
    least = sum(count * step_us(rows, rows) for rows, count in steps.items())
    print(f"{name:16}{len(ladder):4}  {waste.padded_rows:12,} {waste.wasted_fraction:7.2%}"
          f"  {took / least - 1:8.2%}  {waste.eager_steps:5}  {held_mb:8.0f} MB  {rungs}"
          .rstrip())  # fmt: skip


@cache
def step_us(rows: int, rung: int | None) -> float:
    """A decode step of so many requests of 512 tokens, padded to the rung; eager without one."""
    keys = 512 * rows
    shape = StepShape(rung or rows, rung or rows, keys, keys, rows)
    return MODEL.itl_us("full" if rung else "eager", shape)


if __name__ == "__main__":
    main()
