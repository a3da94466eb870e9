"""tokenizer.py, and the checkpoint that ships: its tokenizer, its files, its greedy text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from mini_engine.engine.generation import SHIPPED as CHECKPOINT
from mini_engine.model.checkpoint import EMBED
from mini_engine.model.config import ModelConfig
from mini_engine.model.tokenizer import Tokenizer
from mini_engine.sim.weights import load_weights

GREEDY: dict[str, Any] = json.loads((CHECKPOINT / "greedy.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(CHECKPOINT, ModelConfig.from_folder(CHECKPOINT).eos_token_ids)


# ---------------------------------------------------------------- text and ids


@given(text=st.text(min_size=1))
def test_decode_undoes_encode_for_every_text(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(text=st.text(min_size=1))
def test_stream_gives_the_text_and_never_half_a_character(tokenizer: Tokenizer, text: str) -> None:
    stream = tokenizer.stream()
    pieces = [stream.push(token) for token in tokenizer.encode(text)]
    # U+FFFD in the text itself is held back until something follows it.
    assert "".join(pieces) + stream.finish() == text
    if "\ufffd" not in text:
        assert "\ufffd" not in "".join(pieces)
        assert "".join(pieces) == text


@given(ids=st.lists(st.integers(0, 1535), max_size=40))
def test_stream_of_any_ids_equals_decoding_them_at_once(
    tokenizer: Tokenizer, ids: list[int]
) -> None:
    # Random ids are mostly broken UTF-8 here and there, as a bad model writes it.
    stream = tokenizer.stream()
    text = "".join([stream.push(token) for token in ids]) + stream.finish()
    assert text == tokenizer.decode(ids)


@given(text=st.text(alphabet="aé€ "))
def test_stream_is_exact_when_a_token_ends_inside_a_character(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # "é" is the bytes C3 A9, which byte-level BPE spells "Ã©"; this vocabulary has "aÃ" and "©a".
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*letters, "aÃ", "©a"])}
    library = tokenizers.Tokenizer(models.BPE(vocab, [("a", "Ã"), ("©", "a")]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    tokenizer = saved(library, tmp_path_factory.mktemp("mixed"))
    ids = tokenizer.encode(text) if text else []
    stream = tokenizer.stream()
    pieces = [stream.push(token) for token in ids]
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces)


def test_stream_keeps_the_space_that_a_decoder_drops_at_the_beginning(tmp_path: Path) -> None:
    # SentencePiece-like vocabularies write a space as a leading "▁" and drop the text's first.
    vocab = {"▁one": 0, "▁two": 1, "▁": 2, "!": 3}
    library = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="!"))
    library.decoder = decoders.Metaspace()
    tokenizer = saved(library, tmp_path)
    ids = [0, 1, 3, 2, 1]
    stream = tokenizer.stream()
    assert [stream.push(token) for token in ids] == ["one", " two", "!", " ", " two"]
    assert tokenizer.decode(ids) == "one two!  two"


def test_end_of_text_is_not_text(tokenizer: Tokenizer) -> None:
    (end,) = tokenizer.eos_token_ids
    ids = tokenizer.encode("Return the<|endoftext|>")
    assert ids[-1] == end
    assert tokenizer.decode(ids) == "Return the"


def test_empty_prompt_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="the prompt is empty"):
        tokenizer.encode("")


def test_missing_or_broken_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.json: missing"):
        Tokenizer(tmp_path, ())
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"', "utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json: not a tokenizer"):
        Tokenizer(tmp_path, ())


def test_a_file_that_asks_to_cut_and_to_fill_up_does_neither(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    library = tokenizers.Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    library.enable_truncation(2)
    library.enable_padding(length=64)
    assert saved(library, tmp_path).encode("Return the list") == tokenizer.encode("Return the list")


def test_a_token_beyond_the_models_vocabulary_is_refused(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("Return the")
    assert Tokenizer(CHECKPOINT, (), max(ids) + 1).encode("Return the") == ids
    with pytest.raises(ValueError, match=f"token {max(ids)} beyond vocab_size"):
        Tokenizer(CHECKPOINT, (), max(ids)).encode("Return the")


def test_half_a_character_is_a_question_mark(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("na\udcc3ve") == tokenizer.encode("na?ve")


def saved(library: tokenizers.Tokenizer, folder: Path) -> Tokenizer:
    library.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder, ())


# ---------------------------------------------------------------- the checkpoint that ships


def test_checkpoint_is_a_small_qwen3_whose_q_is_not_as_wide_as_its_hidden_state() -> None:
    config = ModelConfig.from_folder(CHECKPOINT)
    assert config.family == "qwen3"
    assert config.q_size != config.hidden_size
    assert (CHECKPOINT / "model.safetensors").stat().st_size <= 4_000_000
    weights = load_weights(config, CHECKPOINT)
    assert np.isfinite(weights.read(EMBED)).all()
    for layer in weights.layers:
        assert np.isfinite(layer["qkv"]).all()
        assert np.isfinite(layer["gate_up"]).all()


def test_greedy_text_has_margins_that_float32_rounding_cannot_bridge() -> None:
    # Two float32 implementations of this model differ by about 1e-5 in a logit.
    assert min(entry["smallest_margin"] for entry in GREEDY["prompts"]) > 1e-3


def test_transformers_loads_the_folder_and_writes_the_same_greedy_text() -> None:
    train = load_train_script()
    torch, transformers = train.torch, train.transformers
    model = transformers.AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    auto = transformers.AutoTokenizer.from_pretrained(CHECKPOINT)
    for entry in GREEDY["prompts"]:
        prompt = torch.tensor([auto(entry["prompt"]).input_ids])
        assert prompt[0].tolist() == entry["prompt_ids"]
        # The library's own loop with its KV cache, where `greedy` computes each step afresh.
        out = model.generate(prompt, max_new_tokens=48, eos_token_id=-1, do_sample=False)
        assert out[0, prompt.shape[1] :].tolist() == entry["ids"]
        assert auto.decode(entry["ids"]) == entry["text"]


def test_train_script_rewrites_the_greedy_record_it_ships(tmp_path: Path) -> None:
    train = load_train_script()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copy(CHECKPOINT / name, tmp_path / name)
    train.write_greedy(tmp_path)
    again = json.loads((tmp_path / "greedy.json").read_text("utf-8"))
    for new, old in zip(again["prompts"], GREEDY["prompts"], strict=True):
        assert new["ids"] == old["ids"]
        # Another machine sums in another order; its logits move in the fifth place.
        assert new["smallest_margin"] == pytest.approx(old["smallest_margin"], abs=1e-3)


def load_train_script() -> ModuleType:
    """It imports libraries that the engine does without."""
    for library in ("torch", "transformers"):
        pytest.importorskip(library)
    from course import tiny_qwen3

    return tiny_qwen3
