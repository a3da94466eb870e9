"""Where a model is: a shape that we know, a folder, or an id of the Hugging Face hub."""

import importlib
import os
import re
from dataclasses import replace
from pathlib import Path

from mini_engine.files import did_you_mean
from mini_engine.model.config import SHAPES, ModelConfig, named_shape

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# Weights (never a pickle), shape and tokenizer; "original/" and other formats are not fetched.
_JSON = ("model.safetensors.index", "config", "generation_config", "tokenizer", "tokenizer_config")
HUB_FILES = ["model*.safetensors", *(f"{name}.json" for name in _JSON)]


def shape_of(word: str) -> ModelConfig:
    """For predictions, from what lies on this machine: the shape of a name, a folder or a hub id.
    What we know comes first: "Qwen/Qwen3-8B" is "qwen3-8b"."""
    if word.lower() in SHAPES:
        return named_shape(word)
    if Path(word).is_dir():
        return ModelConfig.from_folder(word, predicted=True)
    last = word.rpartition("/")[2]
    if not HUB_ID.fullmatch(word):
        known = f"{', '.join(SHAPES)}, a checkpoint folder, or a hub id"
        near = did_you_mean(word, SHAPES)
        raise ValueError(f"shape {word!r:.60}: expected one of {known}{near}")
    if last.lower() in SHAPES:
        return named_shape(last)
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser()
    place = cache / f"models--{word.replace('/', '--')}" / "snapshots"
    found = [path.parent for path in place.glob("*/config.json")]
    if not found:
        raise ValueError(f"{word}: no {place}/*/config.json: hf download {word} config.json")
    newest = max(found, key=lambda folder: folder.stat().st_mtime)
    return replace(ModelConfig.from_folder(newest, predicted=True), name=last)


def resolve_model(folder_or_id: str | Path) -> Path:
    """For weights and tokenizer: the folder that is given, or that of a hub id, fetched or found in
    the hub's cache. Raises ValueError when it is neither, or cannot be had."""
    folder = Path(folder_or_id)
    if folder.is_dir():
        return folder
    if not HUB_ID.fullmatch(str(folder_or_id)):
        raise ValueError(f"{folder_or_id}: no such folder, and no hub id such as Qwen/Qwen3-0.6B")
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        how = "to fetch its id, pip install huggingface_hub"
        raise ValueError(f"{folder_or_id}: no such folder; {how}") from None
    try:
        return Path(hub.snapshot_download(str(folder_or_id), allow_patterns=HUB_FILES))
    except Exception as error:  # the hub's errors come from four packages; all mean the same here
        reason = f"{type(error).__name__} {error}".splitlines()[0]
        raise ValueError(f"{folder_or_id}: no folder, and not from the hub: {reason}") from error
