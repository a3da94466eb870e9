"""hub.py: a known shape, a folder, a hub id, or one clear line."""

from __future__ import annotations

import json
import os
import sys
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType

import pytest

from mini_engine.engine.generation import SHIPPED as CHECKPOINT
from mini_engine.model.config import ModelConfig, named_shape
from mini_engine.model.hub import resolve_model, shape_of

CONFIG = json.loads((CHECKPOINT / "config.json").read_text("utf-8"))


class FakeHub(ModuleType):
    def __init__(self, folder: Path, error: Exception | None = None) -> None:
        super().__init__("huggingface_hub")
        self.folder, self.error, self.asked = folder, error, []  # type: ignore[var-annotated]

    def snapshot_download(self, repo_id: str, allow_patterns: list[str]) -> str:
        self.asked.append((repo_id, allow_patterns))
        if self.error:
            raise self.error
        return str(self.folder)


def test_a_folder_is_itself_and_asks_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert resolve_model(CHECKPOINT) == CHECKPOINT
    assert resolve_model(str(CHECKPOINT)) == CHECKPOINT


def test_a_hub_id_is_fetched_without_pickles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = FakeHub(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert resolve_model("Qwen/Qwen3-0.6B") == tmp_path
    ((repo_id, patterns),) = hub.asked

    def fetched(file: str) -> bool:
        return any(fnmatch(file, pattern) for pattern in patterns)

    assert repo_id == "Qwen/Qwen3-0.6B"
    assert all(fetched(f) for f in ("config.json", "tokenizer.json", "model.safetensors"))
    assert fetched("model-00001-of-00002.safetensors")
    assert fetched("model.safetensors.index.json")
    refused = ("pytorch_model.bin", "original/consolidated.00.pth", "modeling_qwen.py")
    assert not any(fetched(f) for f in (*refused, "tf_model.h5", "onnx/model.onnx"))


def test_without_the_hub_package_the_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # import then fails
    with pytest.raises(ValueError, match="pip install huggingface_hub"):
        resolve_model("Qwen/Qwen3-0.6B")


@pytest.mark.parametrize(
    "name", ["nowhere", "./a/b", "/a/b", "a/b/c", "../b", "a/..", "https://a/b"]
)
def test_what_is_neither_a_folder_nor_an_id_never_reaches_the_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hub = FakeHub(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    with pytest.raises(ValueError, match="no such folder"):
        resolve_model(name)
    assert hub.asked == []


# ---- shapes for predictions: nothing is fetched


def cached(cache: Path, name: str, time: int, vocab: int) -> None:
    """A snapshot of org/name, as old as `time` says, of a model with so many tokens."""
    folder = cache / f"models--org--{name}" / "snapshots" / f"{time:040}"
    folder.mkdir(parents=True)
    known = CONFIG | {"vocab_size": vocab}
    (folder / "config.json").write_text(json.dumps(known), "utf-8")
    os.utime(folder, (time, time))


@pytest.fixture(params=["HF_HUB_CACHE", "HF_HOME"])
def cache(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv(request.param, str(tmp_path))
    return tmp_path / "hub" if request.param == "HF_HOME" else tmp_path


def test_a_hub_id_that_ends_in_a_known_shape_is_that_shape() -> None:
    assert shape_of("Qwen/Qwen3-8B") is named_shape("qwen3-8b")


def test_a_hub_id_is_the_newest_snapshot_of_the_local_cache(cache: Path) -> None:
    for time, vocab in ((2000, 20), (3000, 30), (1000, 10)):
        cached(cache, "Mine-1B", time, vocab)
    config = shape_of("org/Mine-1B")
    assert (config.name, config.vocab_size) == ("Mine-1B", 30)


def test_a_hub_id_that_is_not_in_the_cache_is_refused_by_where_it_was_looked_for(
    cache: Path,
) -> None:
    with pytest.raises(ValueError, match=f"{cache}/models--org--Gone-1B/snapshots"):
        shape_of("org/Gone-1B")


def test_a_folder_of_fp8_is_a_shape_and_no_model(tmp_path: Path) -> None:
    stored = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    known = CONFIG | {"quantization_config": stored}
    (tmp_path / "config.json").write_text(json.dumps(known), "utf-8")
    assert shape_of(str(tmp_path)).packed == "fp8"
    with pytest.raises(ValueError, match="quantization_config: 'fp8'"):
        ModelConfig.from_folder(tmp_path)
