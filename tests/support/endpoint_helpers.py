"""An endpoint in the process of the test, on a port of its own, and backends for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from aiohttp import ClientResponse, ClientSession, web

from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.endpoint.app import Endpoint
from mini_engine.endpoint.engines import Backend, Placeholder
from mini_engine.engine.batch import SchedulerLimits
from mini_engine.engine.generation import SHIPPED
from mini_engine.model.chat import ChatTemplate
from mini_engine.model.tokenizer import Tokenizer
from mini_engine.serving.replay import RealTime, Replica
from mini_engine.step.kernels import StepShape
from mini_engine.step.run import Mode
from mini_engine.step.step_model import StepModel

Result = TypeVar("Result")


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """asyncio.run in a thread of its own: in this one Playwright's loop may be running."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, main).result()


class FlatCosts(StepModel):
    """Every step takes as long."""

    def __init__(self, us: float) -> None:
        self.us = us

    def itl_us(self, mode: Mode, shape: StepShape) -> float:  # noqa: ARG002
        return self.us


def flat_backend(
    us: float = 200.0, *, seqs: int = 8, blocks: int = 64, context: int = 512, caching: bool = True
) -> Backend:
    """A prediction of steps that take `us` each."""
    limits = SchedulerLimits(seqs, 256, 1 + blocks, 16, context, prefix_caching=caching)
    dispatcher = GraphDispatcher("FULL_AND_PIECEWISE", [1, 2, 4, 8, 16], seqs)
    steps = RealTime(Replica(FlatCosts(us), limits, dispatcher))
    return Backend("flat", steps, Tokenizer(SHIPPED, ()), ChatTemplate(SHIPPED), Placeholder)


@dataclass
class Served:
    endpoint: Endpoint
    session: ClientSession

    async def ask(self, path: str = "completions", **body: Any) -> tuple[int, dict[str, Any]]:
        """Status and JSON of an answer."""
        async with self.session.post(f"/v1/{path}", json=body) as reply:
            return reply.status, await reply.json()

    async def stream(self, path: str = "completions", **body: Any) -> list[dict[str, Any]]:
        """The events of a streamed answer, without the last, which says that it has ended."""
        async with self.session.post(f"/v1/{path}", json={**body, "stream": True}) as reply:
            assert reply.status == 200, await reply.text()
            *events, last = [event async for event in events_of(reply)]
        assert last == "[DONE]"
        return [json.loads(event) for event in events]

    def free_blocks(self) -> int:
        return self.endpoint.backend.steps.scheduler.pool.num_free


async def events_of(reply: ClientResponse) -> AsyncIterator[str]:
    assert reply.content_type == "text/event-stream"
    async for line in reply.content:
        if line.startswith(b"data: "):
            yield line.removeprefix(b"data: ").decode().strip()


@asynccontextmanager
async def served(backend: Backend, **how: Any) -> AsyncIterator[Served]:
    endpoint = Endpoint(backend, **{"max_queue": 100, **how})
    runner = web.AppRunner(endpoint.app, access_log=None, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    endpoint.core.start()
    port = runner.addresses[0][1]
    try:
        async with ClientSession(f"http://127.0.0.1:{port}") as session:
            yield Served(endpoint, session)
    finally:
        await runner.cleanup()
        endpoint.core.stop()


async def settled(server: Served) -> None:
    """Until the engine has nothing left to do: every order that was given before is done."""
    for _ in range(2000):
        core = server.endpoint.core
        if not (core.streams or core.steps.scheduler.has_unfinished or not core._inbox.empty()):
            return
        await asyncio.sleep(0.005)
    raise AssertionError("a stream is stuck")
