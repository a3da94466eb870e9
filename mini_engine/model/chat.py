"""Messages as a prompt: by the chat template of a checkpoint's folder, or line by line."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from mini_engine.files import read_object

TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class ChatTemplate:
    """Without a template, `render` writes a line "role: content" for each message and leaves the
    assistant's to the model. Raises ValueError for a tokenizer_config.json that cannot be read."""

    def __init__(self, folder: Path) -> None:
        config, alone = folder / "tokenizer_config.json", folder / "chat_template.jinja"
        self._config: dict[str, Any] = read_object(config) if config.is_file() else {}
        found = alone.read_text("utf-8") if alone.is_file() else self._config.get("chat_template")
        if isinstance(found, list):  # several, by name
            found = {one["name"]: one["template"] for one in found}.get("default")
        self.source = str(found) if found else None

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Raises ValueError, with the template's own words, for messages that it does not take."""
        if self.source is None:
            lines = [f"{message['role']}: {message['content']}\n" for message in messages]
            return "".join([*lines, "assistant:"])
        from jinja2 import TemplateError

        tokens = {name: self._config.get(name) or "" for name in TOKENS}  # each may be an object
        tokens = {k: v["content"] if isinstance(v, dict) else v for k, v in tokens.items()}
        try:
            found = self._compiled.render(messages=messages, add_generation_prompt=True, **tokens)
        except (TemplateError, TypeError) as error:
            raise ValueError(f"the chat template does not take these messages: {error}") from None
        return str(found)

    @cached_property
    def _compiled(self) -> Any:
        """As transformers compiles it: in a sandbox, with the functions that templates call."""
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def refuse(words: str) -> None:
            raise TemplateError(words)

        jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        jinja.filters["tojson"] = lambda one, **how: json.dumps(one, ensure_ascii=False, **how)
        jinja.globals["raise_exception"] = refuse
        jinja.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        return jinja.from_string(self.source or "")
