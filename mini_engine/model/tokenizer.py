"""Text to token ids and back: a thin wrapper over the `tokenizers` library."""

from __future__ import annotations

from pathlib import Path

import tokenizers

# Decoded from bytes that are not, or not yet, a whole UTF-8 character.
_REPLACEMENT = "\ufffd"


class Tokenizer:
    """The tokenizer.json of a folder; ValueError if there is none, or none that can be read.
    `eos_token_ids`, and `vocab_size` that ids are held against: those of the `ModelConfig`."""

    def __init__(
        self, folder: str | Path, eos_token_ids: tuple[int, ...], vocab_size: int | None = None
    ) -> None:
        self._path = Path(folder) / "tokenizer.json"
        if not self._path.is_file():
            raise ValueError(f"{self._path}: missing; prompts can then only be given as token ids")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(self._path))
        except Exception as error:  # the library raises no narrower one
            raise ValueError(f"{self._path}: not a tokenizer: {error}") from None
        # A file may ask to cut or to fill up every text. transformers does so only on demand.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.eos_token_ids, self._vocab_size = eos_token_ids, vocab_size

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of a prompt, with those that belong around it if `special`. Raises ValueError
        for no ids, and for one without an embedding."""
        whole = text.encode("utf-8", "replace").decode()  # a byte that is no character came as half
        ids = list(self._tokenizer.encode(whole, add_special_tokens=special).ids)
        if not ids:
            raise ValueError("the prompt is empty: give at least one character")
        if self._vocab_size is not None and max(ids) >= self._vocab_size:
            raise ValueError(f"{self._path}: token {max(ids)} beyond vocab_size {self._vocab_size}")
        return ids

    def decode(self, ids: list[int]) -> str:
        """Text of the ids, without special tokens such as end-of-text."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def stream(self) -> TextStream:
        return TextStream(self)


class TextStream:
    """Decodes ids as they come. Bytes of a character that continues in the next token wait for it.

        stream = tokenizer.stream()
        text = "".join(stream.push(i) for i in ids) + stream.finish()    # == decode(ids)

    Exact for byte-level BPE, which Qwen and Llama 3 use.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # The ids of the text returned last, since some decoders drop a space at the very beginning,
        # and all newer ones.
        self._window: list[int] = []
        self._num_old = 0  # of _window: ids whose text has all been returned
        self._num_given = 0  # characters of _window's text that have been returned

    def push(self, token_id: int) -> str:
        """The text that this id completes; "" while a character is incomplete."""
        self._window.append(token_id)
        text = self._tokenizer.decode(self._window)
        whole = text.rstrip(_REPLACEMENT)
        new = whole[self._num_given :]
        self._num_given = len(whole)
        if new and whole == text:
            self._window = self._window[self._num_old :]
            self._num_old = len(self._window)
            self._num_given = len(self._tokenizer.decode(self._window))
        return new

    def finish(self) -> str:
        """What is still held back after the last id: incomplete characters, as U+FFFD."""
        return self._tokenizer.decode(self._window)[self._num_given :]
