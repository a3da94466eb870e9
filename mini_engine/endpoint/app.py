"""An endpoint that speaks OpenAI's API over HTTP, for clients as they are. A client that goes away
takes its request with it, for aiohttp then cancels the handler."""

import asyncio
import hmac
import json
import math
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from typing import Any

from aiohttp import web

from mini_engine.endpoint.core import ERROR, Core, Stream
from mini_engine.endpoint.engines import Backend
from mini_engine.endpoint.protocol import Answer, Body, Refused, read_body
from mini_engine.engine.generation import Tell

BODY_BYTES = 1 << 23
READER_S = 60.0  # who takes nothing for so long is cut off
DONE = b"data: [DONE]\n\n"


class Endpoint:
    """The handlers of one server, and what they share."""

    def __init__(self, backend: Backend, *, max_queue: int, api_key: str | None = None) -> None:
        self.backend, self.api_key = backend, api_key
        self.most = backend.limits.max_num_seqs + max_queue  # requests, running or waiting
        self.ending = asyncio.Event()  # nobody new is let in
        self.core = Core(backend, on_fault=self.ending.set)
        self.created, self._ids = int(time.time()), count()
        self.app = web.Application(client_max_size=BODY_BYTES, middlewares=[self._guard])
        posted = ("/v1/completions", "/v1/chat/completions")
        got = {"/v1/models": self.models, "/health": self.health, "/metrics": self.metrics}
        self.app.add_routes([web.post(path, self.complete) for path in posted])
        self.app.add_routes([web.get(path, handler) for path, handler in got.items()])

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Whatever goes wrong becomes an error as OpenAI writes it."""
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").encode()
        locked = self.api_key if request.path.startswith("/v1/") else None
        try:
            if locked and not hmac.compare_digest(given, locked.encode()):
                words = "wrong API key: send that of --api-key as Authorization: Bearer KEY"
                raise Refused(401, words, "invalid_api_key")
            return await handler(request)
        except Refused as error:
            refused = error
        except web.HTTPRequestEntityTooLarge:
            refused = Refused(413, f"the body is larger than {BODY_BYTES:,} bytes: shorten it")
        except web.HTTPException as error:
            refused = Refused(error.status, f"{request.method} {request.path}: {error.reason}")
        return web.json_response(refused.body, status=refused.status, headers=refused.headers)

    async def models(self, _: web.Request) -> web.Response:
        about = {"owned_by": "launch-bound", "max_model_len": self.backend.limits.max_model_len}
        model = {"id": self.backend.model, "object": "model", "created": self.created, **about}
        return web.json_response({"object": "list", "data": [model]})

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if self.ending.is_set() else 200)

    async def metrics(self, _: web.Request) -> web.Response:
        scheduler, streams = self.backend.steps.scheduler, len(self.core.streams)
        return web.Response(text=self.core.metrics.text(self.backend.model, scheduler, streams))

    async def complete(self, request: web.Request) -> web.StreamResponse:
        content, number = await request.read(), str(next(self._ids))
        chat = request.path.endswith("/chat/completions")
        body, asked = read_body(content, self.backend, number, chat=chat)
        if self.ending.is_set():
            raise Refused(503, "the server is going down: ask another one")
        if len(self.core.streams) >= self.most:
            e2e = self.core.metrics.e2e  # try again after what a request takes
            after_s = min(60, math.ceil(e2e.sum_s / max(1, sum(e2e.counts)))) or 1
            words = f"{self.most} requests are running or waiting: try again later"
            raise Refused(429, words, "queue_full", headers={"Retry-After": str(after_s)})
        kind, short = ("chat.completion", "chatcmpl") if chat else ("text_completion", "cmpl")
        base = {"id": f"{short}-{self.created:x}-{number}", "object": kind,
                "created": int(time.time()), "model": self.backend.model}  # fmt: skip
        answer = Answer(self.backend.pieces(), body.stops, len(asked.prompt))
        stream = self.core.open(asked)
        try:
            if body.stream:
                return await self._stream(request, body, base, answer, stream)
            text = "".join([text async for text in self._texts(stream, answer)])
            message = {"role": "assistant", "content": text, "refusal": None}
            said = {"index": 0, **({"message": message} if chat else {"text": text}),
                    "logprobs": None, "finish_reason": answer.ended}  # fmt: skip
            return web.json_response({**base, "choices": [said], "usage": answer.usage})
        finally:
            self.core.close(stream, answer.ended or "abort")

    async def _texts(self, stream: Stream, answer: Answer) -> AsyncIterator[str]:
        """What each step adds. Raises `Refused` 500 when the engine has failed."""
        while answer.ended is None:
            tokens, ended = await stream.get()
            if ended == ERROR:
                words = f"the engine has failed: {self.core.fault!r:.200}"
                raise Refused(500, words, "engine_failed")
            yield answer.push(tokens, ended)

    async def _stream(
        self, request: web.Request, body: Body, base: dict[str, Any], answer: Answer, stream: Stream
    ) -> web.StreamResponse:
        """Server-sent events: a chunk for each token, usage if it is asked for, [DONE]."""
        reply, chat = web.StreamResponse(), body.messages is not None
        reply.content_type = "text/event-stream"
        await reply.prepare(request)
        base = {**base, "object": "chat.completion.chunk"} if chat else base

        async def send(event: dict[str, Any]) -> None:
            async with asyncio.timeout(READER_S):
                await reply.write(b"data: %b\n\n" % json.dumps(event).encode())

        async def chunk(said: dict[str, Any]) -> None:
            usage = {"usage": answer.usage} if body.stream_options.continuous_usage_stats else {}
            one = {"index": 0, **said, "logprobs": None, "finish_reason": answer.ended}
            await send({**base, "choices": [one], **usage})

        try:
            if chat:
                await chunk({"delta": {"role": "assistant", "content": ""}})
            async for text in self._texts(stream, answer):
                await chunk({"delta": {"content": text}} if chat else {"text": text})
            if body.stream_options.include_usage:
                await send({**base, "choices": [], "usage": answer.usage})
            await reply.write(DONE)
        except Refused as error:  # the status has been sent
            await send(error.body)
            await reply.write(DONE)
        except (ConnectionResetError, TimeoutError):  # its reader has gone, or takes nothing
            if request.transport:
                request.transport.abort()
        return reply


async def serve(
    backend: Backend, host: str, port: int, *, max_queue: int, api_key: str | None, drain_s: float,
    tell: Tell,
) -> Core:  # fmt: skip
    """Serve until SIGTERM or Ctrl-C, and then until everyone has been served or `drain_s` is over.
    Raises OSError where the address cannot be had, and RuntimeError when the engine has failed."""
    endpoint = Endpoint(backend, max_queue=max_queue, api_key=api_key)
    core, app = endpoint.core, endpoint.app
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, host, port, backlog=1024)
    await site.start()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, endpoint.ending.set)
    core.start()
    tell(f"{backend.model} at http://{host}:{runner.addresses[0][1]}/v1; Ctrl-C ends it")
    await endpoint.ending.wait()
    await site.stop()  # connections that are open stay open
    tell(f"no new requests; {len(core.streams)} are served to the end")
    until = time.monotonic() + drain_s
    while core.streams and time.monotonic() < until:
        await asyncio.sleep(0.02)
    await runner.cleanup()
    core.stop()
    if core.fault:
        raise RuntimeError("the engine has failed") from core.fault
    return core
