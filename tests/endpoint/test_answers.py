"""Claims about the answers of the endpoint: they are the engine's, in OpenAI's form."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.endpoint.engines import Backend, real
from mini_engine.endpoint.protocol import Answer
from mini_engine.engine.generation import SHIPPED
from mini_engine.model.chat import ChatTemplate
from mini_engine.sim.generate import generate, open_checkpoint
from mini_engine.step.cards import load_spec
from tests.support.endpoint_helpers import Served, flat_backend, run, served, settled

PROMPTS = ("Return True if", "Remove the", "Return a list of", "Return the number of", "Convert a")
NEW = 12


@pytest.fixture(scope="module")
def texts() -> tuple[str, ...]:
    """What the engine writes by itself."""
    done = generate(
        open_checkpoint(SHIPPED), load_spec("h200"), PROMPTS, "NONE", max_new_tokens=NEW
    )
    return done.texts


def small(wing: str, mode: str, **how: Any) -> Backend:
    return real(str(SHIPPED), wing, mode, None, lambda _: None, max_model_len=64, **how)


async def all_at_once(server: Served) -> list[tuple[int, dict[str, Any]]]:
    asks = [server.ask(prompt=p, max_tokens=NEW, temperature=0) for p in PROMPTS]
    return list(await asyncio.gather(*asks))


@pytest.mark.parametrize(
    ("wing", "mode", "how"),
    [("sim", "NONE", {}), ("sim", "FULL_AND_PIECEWISE", {}),
     pytest.param("cuda", "FULL", {}, marks=pytest.mark.slow),
     ("cuda", "FULL_AND_PIECEWISE", {"steps_per_replay": 3}), ("sim", "FULL", {"max_num_seqs": 2})],
)  # fmt: skip
def test_clients_side_by_side_get_what_the_engine_writes(
    wing: str, mode: str, how: dict[str, Any], texts: tuple[str, ...]
) -> None:
    async def main() -> None:
        async with served(small(wing, mode, **how)) as server:
            free = server.free_blocks()
            answers = await all_at_once(server)
            assert [status for status, _ in answers] == [200] * 5
            assert tuple(one["choices"][0]["text"] for _, one in answers) == texts
            streamed = await server.stream(prompt=PROMPTS[0], max_tokens=NEW, temperature=0)
            assert "".join(one["choices"][0]["text"] for one in streamed) == texts[0]
            assert server.free_blocks() == free

    run(main())


def test_a_seed_draws_the_same_text_again_and_another_seed_another() -> None:
    async def main() -> None:
        async with served(small("sim", "FULL")) as server:
            how = {"prompt": "Return the", "max_tokens": 16, "temperature": 1.5, "top_p": 0.95}
            answers = [await server.ask(**how, seed=seed) for seed in (7, 7, -8, None)]
            one, again, other, _ = [answer["choices"][0]["text"] for _, answer in answers]
            assert one == again != other

    run(main())


def test_a_streamed_answer_is_the_whole_one_with_usage_at_its_end() -> None:
    async def main() -> None:
        async with served(flat_backend()) as server:
            how = {"max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}
            status, whole = await server.ask("chat/completions", **how)
            assert (status, whole["object"]) == (200, "chat.completion")
            message, usage = whole["choices"][0]["message"], whole["usage"]
            assert message == {"role": "assistant", "content": " token" * 5, "refusal": None}
            assert usage["total_tokens"] == usage["prompt_tokens"] + 5
            options = {"include_usage": True, "continuous_usage_stats": True}
            first, *events, last = await server.stream(
                "chat/completions", **how, stream_options=options
            )
            assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
            assert [one["choices"][0]["delta"]["content"] for one in events] == [" token"] * 5
            ends = [one["choices"][0]["finish_reason"] for one in events]
            assert ends == [None] * 4 + ["length"]
            assert [one["usage"]["completion_tokens"] for one in events] == [1, 2, 3, 4, 5]
            assert (last["choices"], last["usage"]) == ([], usage)
            assert {one["object"] for one in [first, *events, last]} == {"chat.completion.chunk"}
            assert len({one["id"] for one in [first, *events, last]}) == 1

    run(main())


def test_a_prompt_may_be_text_or_token_ids_and_has_default_lengths() -> None:
    async def main() -> None:
        async with served(flat_backend(context=64)) as server:
            for prompt, length in (("Return the", 2), (["Return the"], 2), ([5, 6, 7], 3)):
                status, answer = await server.ask(prompt=prompt, model="flat", user="somebody")
                assert status == 200
                assert answer["usage"] == {
                    "prompt_tokens": length, "completion_tokens": 16, "total_tokens": length + 16,
                }  # fmt: skip
            _, answer = await server.ask(
                "chat/completions",
                messages=[{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
            )
            assert answer["usage"]["total_tokens"] == 64  # a chat's answer fills the context

    run(main())


def test_a_stop_string_ends_the_answer_and_is_counted_as_that() -> None:
    async def main() -> None:
        async with served(small("sim", "FULL")) as server:
            how = {"prompt": PROMPTS[0], "max_tokens": 40, "temperature": 0}
            _, whole = await server.ask(**how)
            text = whole["choices"][0]["text"]
            stop = text[5:9]
            _, cut = await server.ask(**how, stop=stop)
            events = await server.stream(**how, stop=[stop, "never"])
            for found in (cut["choices"][0]["text"],
                          "".join(one["choices"][0]["text"] for one in events)):  # fmt: skip
                assert found == text[: text.index(stop)]
            assert events[-1]["choices"][0]["finish_reason"] == "stop"
            await settled(server)
            ended = server.endpoint.core.metrics.ended
            assert ended["stop"] + ended["length"] == 3
            assert not ended["abort"]

    run(main())


class Letters:
    """Tokens that are letters, of which some come only with the next one."""

    def __init__(self) -> None:
        self.held = ""

    def push(self, token: int) -> str:
        self.held += "ab"[token % 2]
        if token > 3:
            return ""
        text, self.held = self.held, ""
        return text

    def finish(self) -> str:
        text, self.held = self.held, ""
        return text


@given(
    steps=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), min_size=1, max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
)
def test_no_text_from_a_stop_string_on_is_ever_sent(
    steps: list[list[int]], stops: list[str]
) -> None:
    whole = "".join("ab"[token % 2] for step in steps for token in step)
    answer, sent = Answer(Letters(), stops, 1), ""  # type: ignore[arg-type]
    for number, step in enumerate(steps, start=1):
        sent += answer.push(step, "length" if number == len(steps) else None)
        if answer.ended:
            break
    assert whole.startswith(sent)
    assert not any(stop in sent for stop in stops)
    if answer.ended == "stop":
        assert any(whole[len(sent) :].startswith(stop) for stop in stops)
    else:
        assert (answer.ended, sent) == ("length", whole)
        assert not any(stop in whole for stop in stops)


def test_messages_become_a_prompt_by_the_checkpoints_own_template(tmp_path: Path) -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
        "{% if messages[0].role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    )
    messages = [{"role": "user", "content": "hi"}]
    assert ChatTemplate(tmp_path).render(messages) == "user: hi\nassistant:"
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": template}]
    for found in (template, named):
        config = {"chat_template": found, "bos_token": {"content": "<s>"}}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        assert ChatTemplate(tmp_path).render(messages) == "<s><user>hi</><assistant>"
    with pytest.raises(ValueError, match="no tools"):
        ChatTemplate(tmp_path).render([{"role": "tool", "content": "x"}])
    (tmp_path / "chat_template.jinja").write_text("{{ messages.append(1) }}")
    with pytest.raises(ValueError, match="template"):  # a template changes nothing
        ChatTemplate(tmp_path).render(messages)
