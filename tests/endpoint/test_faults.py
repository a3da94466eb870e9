"""Claims about clients as they are: they vanish, they do not read, they come all at once. No block
is lost, no stream is stuck, nobody else is harmed, and memory is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import resource
import signal
import socket
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from mini_engine.endpoint import app
from mini_engine.endpoint.engines import Placeholder, real
from mini_engine.engine.generation import SHIPPED
from tests.support.endpoint_helpers import Served, events_of, flat_backend, run, served, settled

ROOT = Path(__file__).parents[2]
few_or_many = pytest.mark.parametrize("clients", [100, pytest.param(1000, marks=pytest.mark.slow)])


@few_or_many
@pytest.mark.parametrize("caching", [True, False])
def test_clients_that_vanish_at_random_leave_no_block_and_no_stream_behind(
    clients: int, caching: bool
) -> None:
    """Half of them go: before the first token, in the midst of the answer, or at its end."""

    async def one(server: Served, seed: int) -> str:
        rng = random.Random(seed)
        prompt, tokens = [rng.randrange(9)] * rng.randint(1, 80), rng.randint(40, 70)
        body = {"prompt": prompt, "max_tokens": tokens, "stream": rng.random() < 0.8}
        goes_after = rng.randint(0, tokens) if seed % 2 else math.inf  # events

        async def ask() -> str:
            async with server.session.post("/v1/completions", json=body) as reply:
                assert reply.status == 200
                if not body["stream"]:
                    assert (await reply.json())["usage"]["completion_tokens"] == tokens
                    return "whole"
                new = 0
                async for _ in events_of(reply):
                    if new == goes_after:
                        reply.close()
                        return "gone"
                    new += 1
                assert new == tokens + 1  # with [DONE]
                return "whole"

        try:
            whole_s = None if body["stream"] or seed % 2 == 0 else rng.random() / 10
            return await asyncio.wait_for(ask(), whole_s)
        except TimeoutError:  # aiohttp then closes the connection
            return "gone"

    async def main() -> None:
        # a cache that is too small for those that run, so that some are preempted meanwhile
        backend = flat_backend(3000.0, seqs=32, blocks=60, context=160, caching=caching)
        async with served(backend, max_queue=clients) as server:
            free = server.free_blocks()
            found = Counter(await asyncio.gather(*(one(server, n) for n in range(clients))))
            await settled(server)
            metrics = server.endpoint.core.metrics
            assert found["whole"] >= clients / 2
            assert found["gone"] > clients / 4
            assert metrics.preemptions > 0
            assert server.free_blocks() == free
            assert not server.endpoint.core.streams
            assert metrics.ended.total() <= clients
            assert metrics.ended["length"] >= found["whole"]
            assert metrics.ended["abort"] > 0

    run(main())


def test_the_real_engine_loses_no_block_to_clients_that_vanish() -> None:
    async def main() -> None:
        how = {"max_num_seqs": 4, "max_model_len": 64}
        backend = real(str(SHIPPED), "sim", "FULL", None, lambda _: None, **how)  # type: ignore
        async with served(backend) as server:
            free, body = server.free_blocks(), {"prompt": "Return the", "ignore_eos": True}
            _, alone = await server.ask(**body, temperature=0, max_tokens=20)
            asks = [asyncio.create_task(server.ask(**body, max_tokens=50)) for _ in range(8)]
            stays = asyncio.create_task(server.ask(**body, temperature=0, max_tokens=20))
            await asyncio.sleep(0.2)
            for ask in asks:
                ask.cancel()
            _, beside = await stays
            assert beside["choices"] == alone["choices"]
            await settled(server)
            assert server.free_blocks() == free

    run(main())


@pytest.mark.parametrize(
    ("clients", "queue"), [(200, 20), pytest.param(10_000, 100, marks=pytest.mark.slow)]
)
def test_a_queue_that_is_full_says_when_to_come_again(clients: int, queue: int) -> None:
    async def one(server: Served) -> int:
        body = {"prompt": [1, 2, 3], "max_tokens": 30}
        async with server.session.post("/v1/completions", json=body) as reply:
            if reply.status == 429:
                assert 1 <= int(reply.headers["Retry-After"]) <= 60
                assert (await reply.json())["error"]["code"] == "queue_full"
            else:
                assert (await reply.json())["usage"]["completion_tokens"] == 30
            return reply.status

    async def main() -> None:
        async with served(flat_backend(2000.0), max_queue=queue) as server:
            free, before = server.free_blocks(), peak_mib()
            most = 0

            async def watch() -> None:
                nonlocal most
                while True:
                    most = max(most, len(server.endpoint.core.streams))
                    await asyncio.sleep(0)

            watching = asyncio.create_task(watch())
            at_once = aiohttp.TCPConnector(limit=500)
            async with aiohttp.ClientSession(
                server.session._base_url, connector=at_once
            ) as server.session:
                found = Counter(await asyncio.gather(*(one(server) for _ in range(clients))))
            watching.cancel()
            await settled(server)
            assert {*found} == {200, 429}
            assert found[200] >= 8 + queue
            assert most == 8 + queue  # running and waiting
            assert server.free_blocks() == free
            assert peak_mib() - before < 200  # clients are in this process, too

    run(main())


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Pages(Placeholder):
    """Tokens of 4 kB: an answer of 4,000 of them is more than sockets hold for a reader."""

    def push(self, token_id: int) -> str:
        return super().push(token_id) * 700


def test_a_reader_who_takes_nothing_is_cut_off_and_slows_nobody_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app, "READER_S", 1.0)

    async def main() -> None:
        backend = flat_backend(20.0, seqs=2, blocks=300, context=4096)
        async with served(replace(backend, pieces=Pages)) as server:
            free = server.free_blocks()
            slow = socket.socket()
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            base = server.session._base_url
            assert base
            slow.connect((base.host, base.port))
            body = b'{"prompt": [1], "max_tokens": 4000, "stream": true}'
            slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: "
                         b"%d\r\n\r\n%b" % (len(body), body))  # fmt: skip
            while not server.endpoint.core.streams:
                await asyncio.sleep(0.01)
            others = [await server.ask(prompt=[2], max_tokens=50) for _ in range(20)]
            assert {status for status, _ in others} == {200}
            await settled(server)
            assert server.free_blocks() == free

            def rest() -> bytes:
                slow.settimeout(10)
                got = b""
                with contextlib.suppress(ConnectionResetError):
                    while more := slow.recv(1 << 16):
                        got += more
                return got

            got = await asyncio.to_thread(rest)
            assert got.startswith(b"HTTP/1.1 200")
            assert b"[DONE]" not in got
            slow.close()

    run(main())


def test_an_engine_that_fails_ends_every_stream_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        backend = flat_backend()
        steps, calls = backend.steps.step, iter(range(100))

        def step() -> object:
            if next(calls) == 5:
                raise RuntimeError("device-side assert")
            return steps()

        monkeypatch.setattr(backend.steps, "step", step)
        async with served(backend) as server:
            how = {"prompt": [1, 2], "max_tokens": 50}
            (status, whole), events = await asyncio.gather(server.ask(**how), server.stream(**how))
            assert (status, whole["error"]["code"]) == (500, "engine_failed")
            assert whole["error"]["type"] == "server_error"
            assert "device-side assert" in events[-1]["error"]["message"]
            assert (await server.ask(**how))[0] == 503
            async with server.session.get("/health") as reply:
                assert reply.status == 503

    run(main())


async def until_refused(address: str) -> None:
    """Knock until nobody new is let in. Raises TimeoutError after 20 seconds."""
    async with asyncio.timeout(20):
        while True:
            try:
                async with aiohttp.ClientSession(address) as late, late.get("/health"):
                    await asyncio.sleep(0.02)
            except aiohttp.ClientError:
                return


@pytest.mark.parametrize("again", [False, True])
def test_sigterm_serves_to_the_end_whoever_is_being_served(again: bool) -> None:
    """`again`: one whose answer takes longer than the time to drain is cut off."""
    words = ["up", "--predict", "qwen3-0.6b", "--port", "0", "--drain", "0.5" if again else "60"]
    command = [sys.executable, "-m", "mini_engine", *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as server:
        try:
            assert server.stderr
            line = next(line for line in server.stderr if "/v1" in line)
            address = line.split(" at ")[1].split("/v1")[0]

            async def main() -> int:
                tokens, new = 20_000 if again else 150, 0
                body = {"prompt": [1, 2, 3], "max_tokens": tokens, "stream": True}
                async with aiohttp.ClientSession(address) as session:
                    async with session.get("/health") as reply:
                        assert reply.status == 200
                    async with session.post("/v1/completions", json=body) as reply:
                        async for event in events_of(reply):
                            new += event != "[DONE]"
                            if new == 5:
                                server.send_signal(signal.SIGTERM)
                                new += 1
                                await until_refused(address)
                        return new - 1

            if again:
                with pytest.raises(aiohttp.ClientPayloadError):
                    run(main())
            else:
                assert run(main()) == 150
            assert server.wait(20) == 0
        finally:  # a server that outlives a failed claim would be waited for without end
            server.kill()
