"""Random servers under random load, for the claims that compare two ways to simulate them."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.engine.batch import SchedulerLimits
from mini_engine.serving.report import Served, ServeReport
from mini_engine.serving.request_trace import TraceRequest, with_shared_prefix
from mini_engine.step.kernels import StepShape
from mini_engine.step.run import Mode
from mini_engine.step.step_model import Line, StepModel


class RandomCosts(StepModel):
    """Costs with all digits random.

    Round numbers would let a request arrive in the very instant in which a step ends; which side
    it falls on then hangs on the last digit of a sum, and strides sum in another order than steps.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def lines(
        self,
        mode: Mode,
        num_tokens: int,
        num_reqs: int,
        served: int | None = None,  # noqa: ARG002
    ) -> tuple[Line, ...]:
        rng = random.Random(f"{self.seed} {mode} {num_tokens} {num_reqs}")
        lines = [(rng.uniform(5, 40), rng.choice([0.0, rng.uniform(0, 2)])) for _ in range(3)]
        return tuple((us + 0.3 * num_tokens, per_key) for us, per_key in lines)

    def itl_us(self, mode: Mode, shape: StepShape) -> float:
        lines = self.lines(mode, shape.num_tokens, shape.num_reqs)
        us = max(us + per_key * shape.kv_tokens for us, per_key in lines)
        return us + 0.01 * (shape.qk_pairs - shape.kv_tokens)


@dataclass(frozen=True)
class Case:
    trace: list[TraceRequest]
    limits: SchedulerLimits
    mode: CUDAGraphMode
    sizes: list[int]
    costs: RandomCosts

    def run(self, simulate_one: Callable[..., ServeReport]) -> tuple[ServeReport, list[Served]]:
        dispatcher = GraphDispatcher(self.mode, self.sizes, self.limits.max_num_seqs)
        served: list[Served] = []
        report = simulate_one(
            self.trace, self.costs, self.limits, dispatcher, on_served=served.append
        )
        return report, served


def random_case(seed: int) -> Case:
    """Evenly random: hypothesis itself prefers small numbers, and small requests never fill a
    cache. About one in three of these preempts."""
    rng = random.Random(seed)
    trace = [
        TraceRequest(
            rng.choice([0.0, rng.uniform(0, 2000)]), rng.randint(1, 40), rng.randint(1, 60)
        )
        for _ in range(rng.randint(1, 14))
    ]
    block_size = rng.randint(1, 7)
    budget = rng.choice([1, 2, 7, 20, 64])
    limits = SchedulerLimits(
        max_num_seqs=min(rng.choice([1, 4, 8, 12]), budget),
        max_num_batched_tokens=budget,
        num_blocks=2 + rng.choice([70, 90, 120, 2000]) // block_size,
        block_size=block_size,
        max_model_len=rng.choice([30, 75, 110]),
        reserve_full_isl=rng.random() < 0.5,
    )
    sizes = sorted(rng.sample(range(1, 33), rng.randint(1, 6)))
    trace.sort(key=lambda r: r.arrival_us)
    mode = rng.choice(list(CUDAGraphMode))
    return Case(trace, limits, mode, sizes, RandomCosts(seed))


def sharing_case(seed: int) -> Case:
    """The same with a prefix cache; more prompts are alike."""
    case, rng = random_case(seed), random.Random(f"{seed} more")
    limits = replace(case.limits, prefix_caching=True)
    trace = list(with_shared_prefix(case.trace, rng.choice([5, 16, 99]), rng.random(), seed))
    return replace(case, trace=trace, limits=limits)


cases = st.builds(random_case, st.integers(0, 2**32))
sharing_cases = st.builds(sharing_case, st.integers(0, 2**32))
