"""The figure of deeper/swap-or-again: from which context on swapping beats computing again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path

from matplotlib.axes import Axes

from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.model.config import named_shape
from mini_engine.plots import hue
from mini_engine.plots.canvas import canvas
from mini_engine.step.cards import load_spec
from mini_engine.step.kernels import StepShape
from mini_engine.step.run import padded_step
from mini_engine.step.step_model import StepModel

CARD, BUDGET, BLOCK, SEQS = "h200", 8192, 16, 256
LINKS = {"PCIe 4.0": "rtx4090", "PCIe 5.0": "h200", "NVLink-C2C": "gh200"}  # whose figure it is
COLOURS = dict(zip(LINKS, (hue.SERIES[1], hue.SERIES[0], hue.SERIES[2]), strict=True))
MODELS = {"qwen3-0.6b": "Qwen3-0.6B", "qwen3-8b": "Qwen3-8B"}
TOKENS = [64 * 2 ** (i / 8) for i in range(74)]  # 64 to about 36,000


@dataclass(frozen=True)
class SwapCost:
    """What swapping a preempted request, or computing it again, costs a server whose steps hold up
    to `budget` tokens.

        swap    = 2 x blocks x max(bytes of a block / link, CPU time of starting a copy)
        again   = for each chunk of the budget: a step with the chunk - the decode step in its place

    Swapping is linear in the tokens. Computing again costs the CPU something however short the
    prompt is, since it cannot run in a full graph of decodes; its attention is quadratic in the
    tokens. A block is one copy, and the step waits for all copies, which is the worst case for
    swapping. Left out: gathering the blocks of all layers within the card.
    """

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


def cost(model: str, link: str) -> SwapCost:
    """One model on the card, behind the link of another."""
    spec = replace(load_spec(CARD), link_gb_s=load_spec(LINKS[link]).link_gb_s)
    dispatcher = GraphDispatcher("FULL_AND_PIECEWISE", default_capture_sizes(SEQS, BUDGET), SEQS)
    return SwapCost(StepModel(named_shape(model), spec), dispatcher, BUDGET, BLOCK)


@cache
def again_pays(model: str, link: str) -> tuple[int, ...]:
    """Tokens, in whole blocks, at which the cheaper way changes: from, to, from, ...

    Looked for between the points that are drawn, and then to the block.
    """
    saves, blocks = cost(model, link).saves_us, [round(n / BLOCK) for n in TOKENS]
    found = []
    for low, high in pairwise(blocks):
        swaps = saves(low * BLOCK) > 0
        if swaps == (saves(high * BLOCK) > 0):
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if (saves(middle * BLOCK) > 0) == swaps else (low, middle)
        found.append(high * BLOCK)
    return tuple(found)


def crossover(path: Path) -> None:
    """Both costs by the tokens in the cache: a panel a model, a line a link."""
    first, last = (round(edge, -3) for edge in again_pays("qwen3-0.6b", "PCIe 5.0"))
    with canvas(
        path,
        (6.9, 7.4),
        title=f"Over PCIe 5.0, computing again wins from about {first:,.0f} to {last:,.0f} "
        "tokens of a small model, and hardly ever for a large one",
        caption=f"Predicted: a request preempted on an H200, steps of up to {BUDGET:,} tokens, "
        f"blocks of {BLOCK}, out and in again. Computing: what it adds to steps that decode. "
        "Grey: it takes less than PCIe 5.0.",
    ) as figure:
        above, below = figure.subfigures(2, 1, height_ratios=[1, 5])
        left, right = below.subplots(1, 2, sharey=True)
        for axes, (model, words) in zip((left, right), MODELS.items(), strict=True):
            _panel(axes, model)
            axes.set_title(words, pad=6)
        left.set_ylabel("ms")
        above.legend(*left.get_legend_handles_labels(), loc="center left", ncols=2)


def _panel(axes: Axes, model: str) -> None:
    edges = again_pays(model, "PCIe 5.0")
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        axes.axvspan(begin, end, color=hue.PANEL, alpha=0.6, linewidth=0)
    again = cost(model, "PCIe 5.0")
    ms = [again.recompute_us(round(n)) / 1e3 for n in TOKENS]
    axes.plot(TOKENS, ms, color=hue.INK, label="compute again")
    for link, colour in COLOURS.items():
        ms = [cost(model, link).swap_us(round(n)) / 1e3 for n in TOKENS]
        axes.plot(TOKENS, ms, "--", color=colour, label=f"swap over {link}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([128, 1024, 8192], ["128", "1,024", "8,192"])
    axes.set_yticks([0.1, 1, 10, 100, 1000], ["0.1", "1", "10", "100", "1,000"])
    axes.set_xlim(TOKENS[0], TOKENS[-1])
    axes.set_ylim(0.03, 3000)
    axes.set_xlabel("tokens in its cache")


FIGURES = {"10-swap-or-again.svg": crossover}
