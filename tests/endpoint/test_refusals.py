"""Claims about what the endpoint refuses: the right status, in OpenAI's form, and nobody else is
harmed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mini_engine.endpoint.app import BODY_BYTES
from tests.support.endpoint_helpers import flat_backend, run, served, settled

CHAT = {"messages": [{"role": "user", "content": "hello"}]}
BAD: list[tuple[str, Any, int, str | None, str | None]] = [  # path, body, status, code, param
    ("completions", {"prompt": "a", "n": 2}, 400, "unsupported_value", "n"),
    ("completions", {"prompt": "a", "logprobs": 3}, 400, "unsupported_value", "logprobs"),
    ("completions", {"prompt": "a", "temperature": -1}, 400, None, None),
    ("completions", {"prompt": "a", "temperature": "hot"}, 400, None, "temperature"),
    ("completions", {"prompt": "a", "temperatur": 1}, 400, None, "temperatur"),
    ("completions", {"prompt": "a", "top_p": 0}, 400, None, None),
    ("completions", {"prompt": "a", "max_tokens": 0}, 400, None, None),
    ("completions", {"prompt": "a", "max_tokens": -3}, 400, None, None),
    ("completions", {"prompt": "a", "max_tokens": True}, 400, None, "max_tokens"),
    ("completions", {"prompt": "a", "max_tokens": 1e9}, 400, None, "max_tokens"),
    ("completions", {"prompt": "a", "stop": list("abcde")}, 400, None, "stop"),
    ("completions", {"prompt": "a", "stop": ""}, 400, None, "stop"),
    ("completions", {"prompt": "a", "model": "gpt-4"}, 404, "model_not_found", "model"),
    ("completions", {"prompt": ""}, 400, None, None),
    ("completions", {"prompt": []}, 400, None, "prompt"),
    ("completions", {"prompt": ["a", "b"]}, 400, None, "prompt"),
    ("completions", {"prompt": [-1]}, 400, None, "prompt"),
    ("completions", {"prompt": [2**40]}, 400, None, "prompt"),
    ("completions", {"prompt": [1.5]}, 400, None, "prompt"),
    ("completions", {}, 400, None, None),
    ("completions", CHAT, 400, None, None),
    ("completions", {"prompt": [1] * 512}, 400, "context_length_exceeded", "prompt"),
    ("completions", {"prompt": [1] * 500, "max_tokens": 13}, 400, "context_length_exceeded",
     "prompt"),
    ("completions", {"prompt": "a", "stream_options": {"include": 1}}, 400, None, "stream_options"),
    ("chat/completions", {"prompt": "a"}, 400, None, None),
    ("chat/completions", {"messages": []}, 400, None, None),
    ("chat/completions", {**CHAT, "max_completion_tokens": 600}, 400, "context_length_exceeded",
     "messages"),
    ("chat/completions", {"messages": [{"role": "user"}]}, 400, None, "messages"),
    ("chat/completions", {**CHAT, "tools": [{"type": "function"}]}, 400, "unsupported_value",
     "tools"),
    ("chat/completions",
     {"messages": [{"role": "user", "content": [{"type": "image_url", "text": ""}]}]}, 400, None,
     "messages"),
    ("completions", b'{"prompt": "a"', 400, None, None),
    ("completions", b"\xff\xfe", 400, None, None),
    ("completions", b"[" * 100_000, 400, None, None),
    ("completions", b"[1]", 400, None, None),
    ("completions", b'{"prompt": "a", "temperature": NaN}', 400, None, "temperature"),
    ("completions", b" " * (BODY_BYTES + 1), 413, None, None),
    ("nothing", {}, 404, None, None),
    ("models", {}, 405, None, None),
]  # fmt: skip


def test_what_is_wrong_is_refused_in_openais_form_and_harms_nobody() -> None:
    async def main() -> None:
        async with served(flat_backend(1000.0, caching=False)) as server:
            free = server.free_blocks()
            other = asyncio.create_task(server.ask(prompt="hello", max_tokens=300))
            for path, body, status, code, param in BAD:
                how = {"data": body} if isinstance(body, bytes) else {"json": body}
                async with server.session.post(f"/v1/{path}", **how) as reply:
                    found = (await reply.json())["error"]
                    assert (reply.status, found["code"], found["param"]) == (status, code, param), (
                        path, found,
                    )  # fmt: skip
                    assert found["type"] == "invalid_request_error"
                    assert found["message"]
            status, answer = await other
            assert (status, answer["usage"]["completion_tokens"]) == (200, 300)
            await settled(server)
            assert server.free_blocks() == free

    run(main())


def test_a_request_that_never_fits_the_cache_is_refused_at_once() -> None:
    async def main() -> None:
        async with served(flat_backend(blocks=4)) as server:
            status, answer = await server.ask(prompt=[1] * 60, max_tokens=20)
            assert status == 400
            assert "blocks" in answer["error"]["message"]

    run(main())


@pytest.mark.parametrize("given", [None, "Bearer wrong", "Bearer ü", "secret"])
def test_who_lacks_the_api_key_is_refused(given: str | None) -> None:
    async def main() -> None:
        async with served(flat_backend(), api_key="secret") as server:
            headers = {"Authorization": given} if given else {}
            right = given == "secret"  # the scheme may be left out
            for path in ("/v1/models", "/v1/completions"):
                async with server.session.request(
                    "GET" if path.endswith("models") else "POST", path, headers=headers,
                    json={"prompt": "a"},
                ) as reply:  # fmt: skip
                    assert reply.status == (200 if right else 401)
                    if not right:
                        assert (await reply.json())["error"]["code"] == "invalid_api_key"
            for path in ("/health", "/metrics"):
                async with server.session.get(path) as reply:
                    assert reply.status == 200

    run(main())
