"""cuda/weights.resolve_model: a folder, a hub id, or one clear line."""

from __future__ import annotations

import sys
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")

from mini_engine.cuda.weights import resolve_model
from mini_engine.engine.generation import SHIPPED as CHECKPOINT


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
    with pytest.raises(ValueError, match="not a hub id either"):
        resolve_model(name)
    assert hub.asked == []
