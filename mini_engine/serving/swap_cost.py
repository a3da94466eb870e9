"""Swap or compute again: what each costs a request that is preempted.

    swap    = 2 x blocks x max(bytes of a block / link, CPU time of starting a copy)
    again   = for each chunk of the budget: a step with the chunk - the decode step in its place

Swapping is linear in the tokens. Computing again costs the CPU something however short the prompt
is, since it cannot run in a full graph of decodes; its attention is quadratic in the tokens.

A block is one copy, and the step waits for all copies, which is the worst case for swapping. Left
out: gathering the blocks of all layers within the card."""

from dataclasses import dataclass

from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.step.kernels import StepShape
from mini_engine.step.run import padded_step
from mini_engine.step.step_model import StepModel


@dataclass(frozen=True)
class SwapCost:
    """Both ways of one server. `budget`: max_num_batched_tokens."""

    steps: StepModel
    dispatcher: GraphDispatcher
    budget: int
    block_size: int

    @property
    def block_bytes(self) -> int:
        """K and V of a block, of all layers."""
        return self.block_size * self.steps.stored.kv_bytes_per_token

    def copy_us(self, blocks: int) -> float:
        spec = self.steps.spec
        return blocks * max(self.block_bytes / (spec.link_gb_s * 1e3), spec.copy_us)

    def swap_us(self, tokens: int) -> float:
        """The blocks of a request with `tokens` in the cache, out and in."""
        return 2 * self.copy_us(-(-tokens // self.block_size))

    def recompute_us(self, tokens: int) -> float:
        """What prefilling `tokens` makes the server wait, beyond its decode steps."""
        decode = self.dispatcher.dispatch(1, 1, uniform_token_count=1)
        total_us = 0.0
        for start in range(0, tokens, self.budget):
            query_len = min(self.budget, tokens - start)
            context = start + query_len
            prompt = self.dispatcher.dispatch(1, query_len)
            shape = StepShape.mixed([query_len], [context])
            chunk = padded_step(prompt, 1, shape.kv_tokens, shape.qk_pairs)
            total_us += self.steps.itl_us(*chunk)
            total_us -= self.steps.itl_us(*padded_step(decode, 1, context, context))
        return total_us

    def saves_us(self, tokens: int) -> float:
        """What swapping saves; below 0 where computing again is cheaper."""
        return self.recompute_us(tokens) - self.swap_us(tokens)
