"""Files of points: bad ones are refused, what is only unknown is named and left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mini_engine.model.config import SHAPES
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.run import step_time
from mini_engine.validate.published import SHIPPED_POINTS, Point, Sheets, predicted_ms, read_points

SHEETS = Sheets.shipped()
GOOD = {
    "id": "mine-1", "class": "vLLM eager", "model": "qwen3-0.6b", "gpu": "h100", "batch": 2,
    "context": 300, "itl_ms": 10.0, "source": "my own bench",
}  # fmt: skip


def read(folder: Path, *points: Any) -> tuple[list[Point], list[str]]:
    path = folder / "points.json"
    path.write_text(json.dumps(list(points)))
    return read_points(path, SHEETS)


# ---- good ones


def test_a_point_needs_eight_fields_and_its_host_is_its_source_where_none_is_given(
    tmp_path: Path,
) -> None:
    points, unknown = read(tmp_path, GOOD)
    assert points == [
        Point("mine-1", "vLLM eager", "qwen3-0.6b", "h100", 2, 300, 10.0, "my own bench",
              "my own bench", "high")
    ]  # fmt: skip
    assert unknown == []


def test_models_and_cards_are_read_in_any_case_and_other_fields_are_let_be(tmp_path: Path) -> None:
    given = {**GOOD, "model": "Qwen3-0.6B", "gpu": "H100", "notes": "quiet", "host": "attic"}
    [point], _ = read(tmp_path, given)
    assert (point.model, point.card, point.host) == ("qwen3-0.6b", "h100", "attic")


def test_every_shipped_point_is_known_and_has_a_source() -> None:
    points, unknown = read_points(SHIPPED_POINTS, SHEETS)
    assert unknown == []
    assert len(points) == 449
    assert len({point.source for point in points}) == 113
    assert len({point.id for point in points}) == len(points)


def test_the_words_of_every_class_name_an_engine() -> None:
    assert {
        "transformers eager", "plain PyTorch eager loop", "plain PyTorch graph loop", "vLLM eager",
        "vLLM V0 graph", "vLLM V1 piecewise", "vLLM V1 graph full", "SGLang eager", "SGLang graph",
        "nano-vllm eager", "nano-vllm graph", "torch.compile graph", "custom kernels, graph loop",
        "megakernel", "other engine graph",
    } == set(SHEETS.engine_of)  # fmt: skip


# ---- unknown ones


@pytest.mark.parametrize(
    ("field", "word", "says"),
    [
        ("gpu", "gaudi3", "mine-1: no card 'gaudi3', known are a10, "),
        ("model", "gpt-5", "mine-1: no model 'gpt-5', known are llama-2-7b, "),
        ("class", "TensorRT graph", "mine-1: no engine 'TensorRT graph', known are SGLang eager, "),
    ],
)
def test_an_unknown_card_model_or_engine_is_named_in_one_line_and_the_rest_goes_on(
    tmp_path: Path, field: str, word: str, says: str
) -> None:
    points, [line] = read(tmp_path, {**GOOD, field: word}, {**GOOD, "id": "mine-2"})
    assert [point.id for point in points] == ["mine-2"]
    assert line.startswith(says)
    assert "\n" not in line


def test_an_unknown_host_is_no_complaint_and_gets_the_engines_usual_one(tmp_path: Path) -> None:
    [point], unknown = read(tmp_path, GOOD)
    spec, mode, known = SHEETS.spec(point)
    assert (unknown, spec.host, mode, known) == ([], "server", "eager", False)


def test_a_host_that_the_fit_has_met_is_known(tmp_path: Path) -> None:
    [point], _ = read(tmp_path, {**GOOD, "host": "yiconrain-vastai-h100"})
    spec, _, known = SHEETS.spec(point)
    assert (spec.host, known) == ("yiconrain-vastai-h100", True)
    assert spec.cpu_op_us < SHEETS.spec(read(tmp_path, GOOD)[0][0])[0].cpu_op_us


# ---- bad ones


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", None), ("class", 7), ("gpu", None), ("source", 7), ("batch", 0), ("batch", 1.5),
        ("context", "8k"), ("itl_ms", -1), ("itl_ms", float("nan")), ("itl_ms", 1e9),
    ],
)  # fmt: skip
def test_a_bad_field_is_refused_by_file_point_and_field(
    tmp_path: Path, field: str, value: object
) -> None:
    with pytest.raises(ValueError, match=rf"points.json: point 2: {field} is"):
        read(tmp_path, GOOD, {**GOOD, field: value})


def test_two_points_of_one_id_are_refused_for_nobody_could_name_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'mine-1'"):
        read(tmp_path, GOOD, {**GOOD, "batch": 8})


@pytest.mark.parametrize("data", [[], {}, "points", [3]])
def test_what_is_no_list_of_points_is_refused(tmp_path: Path, data: object) -> None:
    path = tmp_path / "points.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"points\.json"):
        read_points(path, SHEETS)


# ---- predictions


def test_a_prediction_is_that_of_the_recursion(tmp_path: Path) -> None:
    [point], _ = read(tmp_path, GOOD)
    spec, mode, _ = SHEETS.spec(point)
    ops = step_ops(SHAPES[point.model], StepShape.decode(2, 300), spec.ops)
    counted_ms = step_time(ops, spec, mode, 2).itl_us / 1e3
    assert predicted_ms(point, SHEETS) == pytest.approx(counted_ms)
