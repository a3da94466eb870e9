"""A vLLM server in a process of its own, for as long as it is measured.

In: the command that starts it, its port, the file for its log. Out: it answers on /health while the
body of `served` runs, and has ended, with all that it started, after it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

READY_S = 1200  # a first start compiles for minutes


@contextmanager
def served(words: Sequence[str], port: int, log: Path) -> Iterator[None]:
    """A server while the body runs; ended with all that it started. ValueError if none comes."""
    with socket.socket() as client:  # or another server would be measured
        if client.connect_ex(("127.0.0.1", port)) == 0:
            raise ValueError(f"port {port} is in use: give another with --port")
    with log.open("wb") as out:
        server = subprocess.Popen(words, stdout=out, stderr=out, start_new_session=True)
    try:
        wait_until_ready(server, port, log)
        yield
    finally:
        for blow in (signal.SIGINT, signal.SIGKILL):
            try:
                os.killpg(server.pid, blow)  # its own group: nobody else's processes
                server.wait(timeout=60)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        server.wait()


def wait_until_ready(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Until /health answers."""
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        if server.poll() is not None:
            said = last_lines(log.read_text(encoding="utf-8", errors="replace"))
            raise ValueError(f"vLLM ended with code {server.returncode}: {said} (all of it: {log})")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise ValueError(f"vLLM is not ready after {READY_S} s: see {log}")


def last_lines(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-400:]
