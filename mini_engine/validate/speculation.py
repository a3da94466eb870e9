"""Steps with drafts that others have measured, and how far the model is from them.

A point brings its own acceptance, as tokens a step, so that what is judged is the cost of a step.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from mini_engine.files import read_object, typed
from mini_engine.model.config import named_shape
from mini_engine.step.cards import load_spec
from mini_engine.step.speculation import head_of, speculated

SHIPPED_POINTS = Path(__file__).parent / "published" / "speculation_points.json"


@dataclass(frozen=True)
class DraftPoint:
    """One measured pair: the same requests with drafts and without."""

    id: str  # who drafts, and for which model
    model: str
    gpu: str
    engine: str
    batch: int
    context: int  # tokens of each request
    drafts: int  # of each request, in a step
    draft: Literal["head", "free"]  # by a trained head of one layer, or for nothing
    tokens: float  # that a request writes in a step
    plain_ms: float  # a token of a request, without drafts
    ms: float  # with them
    source: str


@dataclass(frozen=True)
class DraftRow:
    point: DraftPoint
    predicted: float  # how many times as fast as without drafts

    @property
    def measured(self) -> float:
        return self.point.plain_ms / self.point.ms

    @property
    def error(self) -> float:
        """Above 0: the model promises too much."""
        return self.predicted / self.measured - 1


def read_points() -> list[DraftPoint]:
    points = cast(list[object], read_object(SHIPPED_POINTS)["points"])
    return [typed(DraftPoint, one, f"point {n}") for n, one in enumerate(points, start=1)]


def row_of(point: DraftPoint) -> DraftRow:
    config, spec = named_shape(point.model), load_spec(point.gpu, engine=point.engine)
    found = speculated(
        config, spec, batch=point.batch, context=point.context, drafts=point.drafts,
        draft=head_of(config) if point.draft == "head" else None,
    )  # fmt: skip
    return DraftRow(point, point.tokens / found.longer)
