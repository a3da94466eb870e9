"""What drafts buy: tokens a second with k of them a step, by how many the model accepts.

A step checks k + 1 tokens of each request: as a plain step does, it reads the weights once, but it
computes k + 1 times as much, and gives logits of every row. With independent drafts of which a
share α is accepted it writes 1 + α + … + α^k = (1 - α^(k+1)) / (1 - α) tokens of a request
(Leviathan et al. 2023, arXiv 2211.17192, equation 1). Drafts by n-grams cost nothing here; a draft
model takes k steps of one token, as one graph each, without the work of the engine around them."""

from bisect import bisect_left
from dataclasses import dataclass, replace

from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.model.config import ModelConfig
from mini_engine.step.cards import DeviceSpec
from mini_engine.step.kernels import StepShape
from mini_engine.step.run import around, padded_step
from mini_engine.step.step_model import StepModel
from mini_engine.step.storage import Stored

MODE = "FULL_AND_PIECEWISE"


def tokens_a_step(accept: float, drafts: int) -> float:
    """Tokens of a request that a step writes, if each draft is accepted with this probability."""
    return sum(accept**count for count in range(drafts + 1))


@dataclass(frozen=True)
class Speculated:
    batch: int
    drafts: int  # of each request, in a step
    rung: int | None  # tokens of the graph that checks them; None: the step is eager
    plain_us: float  # a step of one token a request
    check_us: float  # one of 1 + drafts
    draft_us: float  # what drafting them takes

    @property
    def plain_tokens_s(self) -> float:
        return self.batch * 1e6 / self.plain_us

    @property
    def drafts_us(self) -> float:
        return self.draft_us + self.check_us

    @property
    def longer(self) -> float:
        """How many times as long as a plain step one with drafts takes."""
        return self.drafts_us / self.plain_us

    def speedup(self, accept: float) -> float:
        return tokens_a_step(accept, self.drafts) / self.longer

    def tokens_s(self, accept: float) -> float:
        return self.plain_tokens_s * self.speedup(accept)

    @property
    def pays_from(self) -> float | None:
        """The least acceptance rate, in thousandths, at which it is not slower; None where even 1
        does not pay."""
        at = bisect_left(range(1001), 1.0, key=lambda thousandth: self.speedup(thousandth / 1000))
        return at / 1000 if at <= 1000 else None


def head_of(config: ModelConfig) -> ModelConfig:
    """One layer of a model and its output matrix: as large as the draft heads that EAGLE trains
    (Li et al. 2024, arXiv 2401.15077), but for a small matrix in front."""
    return replace(config, name=f"a head of {config.name}", num_layers=1)


def speculated(
    config: ModelConfig, spec: DeviceSpec, *, batch: int, context: int, drafts: int,
    draft: ModelConfig | None = None, stored: Stored | None = None,
) -> Speculated:  # fmt: skip
    """`batch` requests with `context` tokens each, at the rungs of vLLM's ladder for these drafts.
    `draft`: the model that writes them; None: n-grams. Raises ValueError below 1."""
    model = StepModel(config, spec, stored)
    plain, _ = _step_us(model, batch, context, 1)
    check, rung = _step_us(model, batch, context, 1 + drafts)
    draft_us = 0.0
    if draft:
        one_us = StepModel(draft, spec).itl_us("full", StepShape.decode(batch, context))
        draft_us = drafts * (one_us - around(spec, batch)[0] - spec.sync_us)
    return Speculated(batch, drafts, rung, plain, check, draft_us)


def _step_us(
    model: StepModel, batch: int, context: int, query_len: int
) -> tuple[float, int | None]:
    """A decode step of `query_len` tokens a request, and its rung. All rows get logits."""
    seqs, tokens = model.spec.batch_defaults
    sizes = default_capture_sizes(seqs, tokens, num_speculative_tokens=query_len - 1)
    dispatcher = GraphDispatcher(MODE, sizes, seqs, query_len)
    descriptor = dispatcher.dispatch(batch, batch * query_len, query_len)
    rows = descriptor.num_tokens
    shape = StepShape.mixed([query_len] * batch, [context + query_len - 1] * batch)
    mode, padded = padded_step(descriptor, batch, shape.kv_tokens, shape.qk_pairs)
    us = model.itl_us(mode, replace(padded, num_reqs=rows))
    return us, None if mode == "eager" else rows
