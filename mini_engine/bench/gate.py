"""The gate before the clock: is a variant as near to the truth as plain bf16 is?

Rounding to bf16 makes errors that nobody asks a decoder to avoid; they are the allowance. Each
variant decodes twice: fed with the same random tokens as the others (teacher-forced), and on the
tokens that it really produces, where reference and plain variant are fed those. At every position

    KL    = sum p log(p / q)                   p of the reference, q of the variant
    |NLL| = sum p | log p - log q |            of the next token, in expectation

are compared with those of the plain variant, position by position. A variant passes when

1. nothing is NaN or infinite;
2. every token that it sampled is a best one of its own logits, up to bf16's rounding of them:
   a variant could show fine logits and feed back another token;
3. for both errors, on both paths, the upper 95% bound (bootstrap) of the mean difference
   variant - plain is no more than MARGIN of plain bf16's own mean error.

Without a margin, of variants that are as good, one in twenty would pass each of the four tests. A
fault that moves the logits by less than bf16's own rounding passes, by design.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from mini_engine.bench.decode_setup import DecodeSetup, Variant, float32_setup
from mini_engine.bench.variants import OursEager

MARGIN = 0.25  # of plain bf16's own mean error; frozen before the first measurement, see above
CONTEXT = 32  # tokens before both paths: the same random cache for all variants
POSITIONS = 1024  # to compare on each path, where the batch is large ...
STEPS = (4, 128)  # ... but never fewer or more steps than this
BF16_ROUNDING = 2.0**-8  # of two numbers that are rounded to eight bits each, by half a unit
RESAMPLES = 2000


@dataclass(frozen=True)
class Excess:
    """An error of a variant beside that of plain bf16: means over a path's positions, in nats, and
    the upper 95% bound of mean(variant - plain)."""

    variant: float
    plain: float
    upper: float

    @property
    def passed(self) -> bool:
        return self.upper <= MARGIN * self.plain

    def __str__(self) -> str:
        return f"{self.variant:.3g} against {self.plain:.3g} of plain bf16, bound {self.upper:+.3g}"


@dataclass(frozen=True)
class PathErrors:
    positions: int
    kl: Excess
    nll: Excess

    @property
    def passed(self) -> bool:
        return self.kl.passed and self.nll.passed


@dataclass(frozen=True)
class Verdict:
    fault: str = ""  # of the logits or tokens themselves: then no path is compared
    produced: PathErrors | None = None
    forced: PathErrors | None = None  # None also where it feeds itself, several steps a call

    @property
    def passed(self) -> bool:
        return not self.reason

    @property
    def reason(self) -> str:  # why it did not pass, in one line; "" when it did
        if self.fault:
            return f"gate: {self.fault}"
        for name, path in (("teacher-forced", self.forced), ("its own tokens", self.produced)):
            if path and not path.passed:
                return f"gate: {name}: KL {path.kl}; |NLL| {path.nll}; allowed +{MARGIN:.0%}"
        return ""

    def as_dict(self) -> dict[str, object]:
        return {"passed": self.passed, "reason": self.reason, "margin": MARGIN, **asdict(self)}


class Gate:
    """Judges one variant after the other on one setup: `plain` decodes on it, `reference` on its
    float32 twin."""

    def __init__(self, setup: DecodeSetup, most_steps: int = STEPS[1]) -> None:
        self.setup, self.plain = setup, OursEager(setup)
        self.reference = OursEager(float32_setup(setup, CONTEXT, room_of(setup.batch)))
        self.steps = min(most_steps, steps_of(setup.batch))
        shape, vocab = (self.steps, setup.batch), setup.model.config.vocab_size
        draw = torch.randint(vocab, shape, generator=torch.Generator().manual_seed(4))
        self._forced = draw.to(setup.backend.device, torch.int32)
        # The last path of each kind, forced or not, with the logits of reference and plain.
        self._known: dict[bool, tuple[Tensor, ...]] = {}

    def judge(self, variant: Variant) -> Verdict:
        """Decode on both paths and compare."""
        found = []
        for path in [None, self._forced] if variant.steps_a_call == 1 else [None]:
            logits, tokens = walk(variant, self.setup.first_tokens, self.steps, path)
            if not logits.isfinite().all():
                return Verdict("its logits are not all finite")
            if path is None and not are_best(logits, tokens):
                return Verdict("it sampled tokens that are not the best of its own logits")
            found.append(self._compare(logits, tokens if path is None else path))
        return Verdict(produced=found[0], forced=found[1] if len(found) > 1 else None)

    def _compare(self, logits: Tensor, path: Tensor) -> PathErrors:
        """logits (steps, B, V) of the variant; path (steps, B): the token that followed each."""
        kind = path is self._forced
        if kind not in self._known or not torch.equal(self._known[kind][0], path):
            self._known.pop(kind, None)  # before the next ones take as much memory
            first, steps = self.setup.first_tokens, len(path)
            both = [walk(one, first, steps, path)[0] for one in (self.reference, self.plain)]
            self._known[kind] = path, *both
        _, truth, plain = self._known[kind]
        ours, theirs = errors(truth, logits), errors(truth, plain)
        return PathErrors(path.numel(), *map(excess, ours, theirs))


def steps_of(batch: int) -> int:
    return max(STEPS[0], min(STEPS[1], POSITIONS // batch))


def room_of(batch: int) -> int:
    """Tokens that a request must have room for; several steps a call overshoot by some."""
    return CONTEXT + steps_of(batch) + 16


def walk(
    variant: Variant, first: Tensor, steps: int, forced: Tensor | None = None,
    context: int = CONTEXT,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Decode from `context` on: logits (steps, B, V) float32, and tokens (steps, B) as sampled.
    With `forced` (steps, B), step i + 1 is fed forced[i]."""
    variant.place(first, context)
    logits, tokens = list[Tensor](), list[Tensor]()
    while len(logits) < steps:
        variant.step()
        logits += [one.float().clone() for one, _ in variant.outputs]
        tokens += [one.to(torch.int32).clone() for _, one in variant.outputs]
        if forced is not None:
            variant.feed(forced[len(logits) - 1])
    return torch.stack(logits[:steps]), torch.stack(tokens[:steps])


def are_best(logits: Tensor, tokens: Tensor) -> bool:
    """Whether each token has the largest of its logits, up to a rounding to bf16, since a variant
    may choose before it rounds. logits (n, B, V), tokens (n, B)."""
    best = logits.amax(-1)
    own = logits.gather(-1, tokens.long()[..., None])[..., 0]
    return bool((own >= best - BF16_ROUNDING * best.abs()).all())


def errors(truth: Tensor, logits: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """KL and |NLL| at each position, float64. truth, logits (n, B, V)."""
    found = []
    for t, x in zip(truth, logits, strict=True):  # a step at a time: V is large
        log_p, log_q = t.double().log_softmax(-1), x.double().log_softmax(-1)
        p, difference = log_p.exp(), log_p - log_q
        found.append(torch.stack([(p * difference).sum(-1), (p * difference.abs()).sum(-1)]))
    kl, nll = torch.cat(found, dim=1).cpu().numpy()
    return kl, nll


def excess(ours: np.ndarray, theirs: np.ndarray) -> Excess:
    """From the errors of the variant and of plain bf16, position by position."""
    differences, count = ours - theirs, len(ours)
    picks = np.random.default_rng(0).integers(0, count, (RESAMPLES, count))
    upper = float(np.percentile(differences[picks].mean(axis=1), 95))  # one-sided bootstrap
    return Excess(float(ours.mean()), float(theirs.mean()), upper)
