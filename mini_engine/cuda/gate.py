"""The gate before every clock: is an arm as near to the truth as plain bf16 is?

In:  an arm, the plain arm (our eager model in bf16), the reference (the same in float32).
Out: `Verdict`.

Rounding to bf16 makes errors that nobody asks a decoder to avoid; they are the allowance. Each arm
decodes twice: fed with the same random tokens as the others (teacher-forced), and on the tokens
that it really produces, where reference and plain arm are fed those. At every position

    KL  = sum p log(p / q)                     p of the reference, q of the arm
    NLL = | log p(token) - log q(token) |      of the next token of the path

are compared with those of the plain arm, position by position. The arm passes when nothing is NaN
or infinite and the upper 95% bound (bootstrap) of the mean difference arm - plain is 0 or less, for
both, on both paths. How often the arm's best token is the reference's is reported and not judged:
near ties are decided by rounding. All of this was fixed before the first measurement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from mini_engine.cuda.stage import Arm, Stage

CONTEXT = 32  # where both paths start: everything behind it is the same random cache for all arms
POSITIONS = 1024  # to look at, on each path, where the batch is large ...
STEPS = (4, 64)  # ... but never fewer or more steps than this
RESAMPLES = 2000


@dataclass(frozen=True)
class PathErrors:
    """One path. Means over its positions, in nats; `upper`: 95% bound of mean(arm - plain)."""

    positions: int
    kl: float
    plain_kl: float
    kl_upper: float
    nll: float
    plain_nll: float
    nll_upper: float
    agreement: float  # share of positions where the arm's best token is the reference's
    plain_agreement: float


@dataclass(frozen=True)
class Verdict:
    """What the gate found."""

    finite: bool
    forced: PathErrors | None  # None: it feeds itself, several steps a call
    produced: PathErrors | None  # None: its logits were not finite

    @property
    def passed(self) -> bool:
        paths = [path for path in (self.forced, self.produced) if path]
        return self.finite and all(p.kl_upper <= 0 and p.nll_upper <= 0 for p in paths)

    @property
    def reason(self) -> str:
        """Why it did not pass, in one line; "" when it did."""
        if not self.finite:
            return "gate: its logits are not all finite"
        for name, path in (("teacher-forced", self.forced), ("its own tokens", self.produced)):
            if path and max(path.kl_upper, path.nll_upper) > 0:
                return (
                    f"gate: {name}: KL {path.kl:.3g} against {path.plain_kl:.3g} of plain bf16, "
                    f"upper bounds {path.kl_upper:.2g} (KL) and {path.nll_upper:.2g} (NLL) > 0"
                )
        return ""

    def as_dict(self) -> dict[str, object]:
        return {"passed": self.passed, "reason": self.reason, **asdict(self)}


class Gate:
    """The truth and the allowance for one stage; judges arm after arm."""

    def __init__(self, stage: Stage, plain: Arm, reference: Arm) -> None:
        """`plain` stands on `stage`, `reference` on its float32 twin, both prepared."""
        self.stage, self.plain, self.reference = stage, plain, reference
        self.steps = steps_of(stage.batch)
        shape, vocab = (self.steps, stage.batch), stage.model.config.vocab_size
        draw = torch.randint(vocab, shape, generator=torch.Generator().manual_seed(4))
        self._forced = draw.to(stage.backend.device, torch.int32)

    def judge(self, arm: Arm) -> Verdict:
        """Decode on both paths and compare."""
        logits, tokens = walk(arm, self.stage.first_tokens, self.steps)
        if not bool(torch.isfinite(logits).all()):
            return Verdict(finite=False, forced=None, produced=None)
        produced = self._compare(logits, tokens)
        if arm.steps_a_call > 1:
            return Verdict(finite=True, forced=None, produced=produced)
        logits, _ = walk(arm, self.stage.first_tokens, self.steps, self._forced)
        if not bool(torch.isfinite(logits).all()):
            return Verdict(finite=False, forced=None, produced=produced)
        return Verdict(True, self._compare(logits, self._forced), produced)

    def _compare(self, logits: Tensor, path: Tensor) -> PathErrors:
        """logits (steps, B, V) of the arm; path (steps, B): the token that followed each."""
        truth, _ = walk(self.reference, self.stage.first_tokens, len(path), path)
        plain, _ = walk(self.plain, self.stage.first_tokens, len(path), path)
        ours, theirs = errors(truth, logits, path), errors(truth, plain, path)
        return PathErrors(
            positions=path.numel(),
            kl=float(ours["kl"].mean()),
            plain_kl=float(theirs["kl"].mean()),
            kl_upper=upper_bound(ours["kl"] - theirs["kl"]),
            nll=float(ours["nll"].mean()),
            plain_nll=float(theirs["nll"].mean()),
            nll_upper=upper_bound(ours["nll"] - theirs["nll"]),
            agreement=float(ours["agree"].mean()),
            plain_agreement=float(theirs["agree"].mean()),
        )


def steps_of(batch: int) -> int:
    """How many steps the gate looks at."""
    return max(STEPS[0], min(STEPS[1], POSITIONS // batch))


def room_of(batch: int) -> int:
    """Tokens that a request must have room for; arms of several steps a call run over by some."""
    return CONTEXT + steps_of(batch) + 16


def walk(
    arm: Arm, first: Tensor, steps: int, forced: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Decode from CONTEXT on: logits (steps, B, V) float32, and tokens (steps, B) as sampled.

    With `forced` (steps, B), step i + 1 is fed forced[i] and not what step i sampled.
    """
    arm.place(first, CONTEXT)
    logits: list[Tensor] = []
    tokens: list[Tensor] = []
    while len(logits) < steps:
        arm.step()
        logits += [one.float().clone() for one in arm.logits()]
        tokens += [one.to(torch.int32).clone() for one in arm.tokens()]
        if forced is not None:
            arm.feed(forced[len(logits) - 1])
    return torch.stack(logits[:steps]), torch.stack(tokens[:steps])


def errors(truth: Tensor, logits: Tensor, path: Tensor) -> Mapping[str, np.ndarray]:
    """KL, NLL and agreement at each position, float64. truth, logits (n, B, V); path (n, B)."""
    found: dict[str, list[Tensor]] = {"kl": [], "nll": [], "agree": []}
    for t, x, token in zip(truth, logits, path.long(), strict=True):  # a step at a time: V is large
        p, q = t.double().log_softmax(-1), x.double().log_softmax(-1)
        found["kl"].append((p.exp() * (p - q)).sum(-1))
        found["nll"].append((p - q).gather(-1, token[:, None])[:, 0].abs())
        found["agree"].append((t.argmax(-1) == x.argmax(-1)).double())
    return {name: torch.cat(values).cpu().numpy() for name, values in found.items()}


def upper_bound(differences: np.ndarray, seed: int = 0) -> float:
    """The upper 95% bound of their mean (one-sided bootstrap)."""
    picks = np.random.default_rng(seed).integers(0, len(differences), (RESAMPLES, len(differences)))
    return float(np.percentile(differences[picks].mean(axis=1), 95))
