"""Drive the system's own Firefox over WebDriver BiDi, a WebSocket that it opens itself.

In:  a program. Out: `Firefox`, with one page that is sized, opened, asked and typed into.

Playwright drives only a Firefox that it has patched. BiDi (https://w3c.github.io/webdriver-bidi)
needs neither a driver nor a package: tornado, which comes with Jupyter, has the WebSocket.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from tornado.websocket import WebSocketClientConnection, websocket_connect

KEYS = {"Enter": "\ue006", "End": "\ue010", "Home": "\ue011", "ArrowRight": "\ue014"}
WAIT_S = 60  # for an answer


def wait_for(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> Any:
    """What `work` returns in the loop of another thread: this one may have Playwright's loop."""
    return asyncio.run_coroutine_threadsafe(work, loop).result(WAIT_S)


class Firefox:
    """One browser with one page."""

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: WebSocketClientConnection) -> None:
        self.loop, self.socket, self.asked = loop, socket, 0
        self.complaints: list[str] = []
        self.call("session.new", capabilities={})
        self.call("session.subscribe", events=["log.entryAdded"])
        # A headless Firefox's first window never has the focus: no key presses a button there.
        self.page = self.call("browsingContext.create", type="window")["context"]

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of one command. Raises RuntimeError where Firefox says that it failed."""
        self.asked += 1
        return wait_for(self.loop, self._call(self.asked, method, params))

    async def _call(self, number: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
        await self.socket.write_message(
            json.dumps({"id": number, "method": method, "params": params})
        )
        while True:
            told = json.loads(str(await self.socket.read_message()))
            if told.get("method") == "log.entryAdded" and told["params"]["level"] == "error":
                self.complaints.append(str(told["params"]["text"]))
            if told.get("id") == number:
                if told["type"] == "error":
                    raise RuntimeError(f"{method}: {told['message']}")
                return dict(told["result"])

    def size(self, width: int, height: int) -> None:
        """Make the page so many pixels large."""
        size = {"width": width, "height": height}
        self.call("browsingContext.setViewport", context=self.page, viewport=size)

    def open(self, url: str) -> None:
        """Go there, and wait until all is loaded."""
        self.call("browsingContext.navigate", context=self.page, url=url, wait="complete")

    def ask(self, script: str) -> Any:
        """The value of an expression in the page, which must be one that JSON knows."""
        found = self.call(
            "script.evaluate", expression=f"JSON.stringify({script})", awaitPromise=True,
            target={"context": self.page},
        )  # fmt: skip
        if found["type"] == "exception":
            raise RuntimeError(found["exceptionDetails"]["text"])
        value = found["result"].get("value")
        return None if value is None else json.loads(value)

    def press(self, key: str) -> None:
        """A key, as a keyboard gives it to whatever has the focus."""
        value = KEYS[key]
        strokes = [{"type": kind, "value": value} for kind in ("keyDown", "keyUp")]
        source = {"type": "key", "id": "keyboard", "actions": strokes}
        self.call("input.performActions", context=self.page, actions=[source])


async def connected(address: str) -> WebSocketClientConnection:
    return await websocket_connect(address)


@contextmanager
def firefox(program: str, *, dark: bool) -> Iterator[Firefox]:
    """Without a window, with a new profile. `dark`: what the page is told that the reader likes."""
    scheme = f'user_pref("layout.css.prefers-color-scheme.content-override", {0 if dark else 1});\n'
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        (Path(profile) / "user.js").write_text(scheme)
        words = [program, "--headless", "--no-remote", "--profile", profile]
        words += ["--remote-debugging-port", "0", "about:blank"]
        started = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"HOME": profile},
        )  # fmt: skip
        assert started.stderr is not None
        loop = asyncio.new_event_loop()
        Thread(target=loop.run_forever, daemon=True).start()
        try:
            says = (line.partition("listening on ")[2].strip() for line in started.stderr)
            address = next(filter(None, says))
            yield Firefox(loop, wait_for(loop, connected(f"{address}/session")))
        finally:
            loop.call_soon_threadsafe(loop.stop)
            started.kill()
            started.communicate()
