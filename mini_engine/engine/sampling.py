"""How the next token of a request is drawn: numbers that a user gives, checked in words."""

from collections.abc import Iterable
from dataclasses import dataclass

SEEDS = 2**32  # seeds are words of 32 bits


@dataclass(frozen=True)
class SamplingParams:
    """Greedy unless a temperature is given; the other fields then say what may be drawn. The order
    is that of vLLM's sampler (vllm/v1/worker/gpu/sample/sampler.py, `Sampler.sample`): logits are
    divided by the temperature; `min_p` drops tokens less likely than min_p times the likeliest;
    `top_k` keeps the k likeliest; `top_p` keeps the fewest of the likeliest that hold this share of
    what is left then. Tokens as likely as the last one kept stay, too."""

    temperature: float = 0.0  # 0: the likeliest token, whatever the other fields say
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    min_p: float = 0.0  # 0: off
    seed: int = 0  # the same seed gives the same text

    def __post_init__(self) -> None:
        # Below 1e-5 nothing but the likeliest token is ever drawn; beyond 1e5 all are alike.
        temperature = self.temperature == 0 or 1e-5 <= self.temperature <= 1e5
        for name, right, allowed in (
            ("temperature", temperature, "0 (greedy), or 1e-5 to 100,000"),
            ("top_k", self.top_k >= 0, "1 or more tokens, or 0 for all"),
            ("top_p", 0 < self.top_p <= 1, "more than 0 and at most 1 (all)"),
            ("min_p", 0 <= self.min_p <= 1, "0 (all) to 1"),
            ("seed", 0 <= self.seed < SEEDS, f"0 to {SEEDS - 1:,}"),
        ):
            if not right:
                raise ValueError(f"{name} is {getattr(self, name)}: give {allowed}")


GREEDY = SamplingParams()


def check_greedy(params: Iterable[SamplingParams]) -> None:
    """Raises ValueError, from a runner that takes the argmax of every row, where one is not to."""
    for one in params:
        if one.temperature:
            raise ValueError(f"temperature is {one.temperature}, of a runner without sampling=True")
