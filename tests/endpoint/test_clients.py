"""Claims about clients as they are installed from PyPI: they run against the endpoint, unmodified.

They need an environment of their own (`pip install openai guidellm aiperf`); CLIENTS names its
folder of programs, as in CLIENTS=/path/to/venv/bin. Without it they are looked for on the PATH.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mini_engine.engine.generation import SHIPPED

ROOT = Path(__file__).parents[2]
CLIENTS = os.environ.get("CLIENTS", os.environ.get("PATH", ""))
ENGINES = {
    "predicted": ("--predict", "qwen3-8b", "--spec", "h100"),
    "sim": ("--max-model-len", "400"),
    "cuda": ("--backend", "cuda", "--max-model-len", "400", "--max-num-seqs", "4"),
}
pytestmark = pytest.mark.slow
each_engine = pytest.mark.parametrize("engine", list(ENGINES))


def program(name: str) -> str:
    found = shutil.which(name, path=CLIENTS)
    if found is None:
        pytest.skip(f"{name} is not in CLIENTS, nor on the PATH")
    return found


def said(command: list[str], folder: Path) -> str:
    env = {**os.environ, "PYTHONPATH": ""}
    env.pop("HF_HUB_OFFLINE", None)  # aiperf then looks for a folder in the hub's cache alone
    how: dict[str, Any] = {"capture_output": True, "text": True, "cwd": folder, "env": env}
    done = subprocess.run(command, timeout=400, **how)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return str(done.stdout)


@contextmanager
def up(*words: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The address of a server, and, once it has gone down, what it found."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mini_engine", "up", "--json", "--port", str(port), *words]
    env, found = {**os.environ, "PYTHONPATH": str(ROOT)}, dict[str, Any]()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as server:
        address, until = f"http://127.0.0.1:{port}", time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"{address}/health").close()
                break
            except OSError:
                assert server.poll() is None
                assert time.monotonic() < until
                time.sleep(0.1)
        try:
            yield address, found
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.stdout
        found |= json.loads(server.stdout.read())
        assert server.wait(60) == 0


OPENAI = """
import sys, openai
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="secret", max_retries=0)
(model,) = client.models.list()
how = dict(model=model.id, max_tokens=12, temperature=0, seed=1)
whole = client.completions.create(prompt="Return the", **how)
parts = client.completions.create(prompt="Return the", stream=True, **how)
assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text
assert whole.usage.completion_tokens == 12 or whole.choices[0].finish_reason == "stop"
said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
with client.chat.completions.create(
    messages=said, stream=True, stream_options={"include_usage": True}, **how
) as chat:
    chunks = list(chat)
assert chunks[-1].usage.completion_tokens >= 1 and not chunks[-1].choices
assert chunks[-2].choices[0].finish_reason in ("stop", "length")
assert client.chat.completions.create(messages=said, **how).choices[0].message.role == "assistant"
for error, wrong in ((openai.BadRequestError, {"n": 2}), (openai.NotFoundError, {"model": "x"})):
    try:
        client.completions.create(prompt="a", **{**how, **wrong})
        sys.exit("it was not refused")
    except error as refused:
        assert refused.body["param"] == next(iter(wrong)), refused.body
try:
    openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="wrong").models.list()
    sys.exit("it was not refused")
except openai.AuthenticationError:
    print("openai", openai.__version__)
"""


@each_engine
def test_openais_sdk(engine: str, tmp_path: Path) -> None:
    python = program("python")
    if subprocess.run([python, "-c", "import openai"], capture_output=True).returncode:
        pytest.skip("openai is not installed in CLIENTS")
    with up(*ENGINES[engine], "--api-key", "secret") as (address, found):
        assert said([python, "-c", OPENAI, address], tmp_path).startswith("openai ")
    assert found["ended"]["length"] + found["ended"].get("stop", 0) == 4


def guidellm(address: str, streams: int, requests: int, tokens: int, folder: Path) -> Any:
    """The metrics of a run of so many concurrent streams."""
    words = [
        program("guidellm"), "run", "--backend", f"kind=openai_http,target={address}",
        "--profile", f"kind=concurrent,streams={streams}",
        "--constraint", f"kind=max_requests,count={requests}",
        "--tokenizer", f"kind=huggingface_auto,model={SHIPPED}",
        "--data", f"kind=synthetic_text,prompt_tokens=64,output_tokens={tokens}",
        "--output", f"kind=json,path={folder / 'guidellm.json'}", "--disable-progress",
    ]  # fmt: skip
    said(words, folder)
    return json.loads((folder / "guidellm.json").read_text())["benchmarks"][0]["metrics"]


@each_engine
def test_guidellm(engine: str, tmp_path: Path) -> None:
    with up(*ENGINES[engine]) as (address, found):
        metrics = guidellm(address, 2, 4, 16, tmp_path)
    assert metrics["request_totals"]["successful"] == 4
    assert metrics["output_token_count"]["successful"]["median"] == 16
    assert found["ended"]["length"] >= 4


@pytest.mark.parametrize("streams", [1, 8, 32])
def test_guidellm_measures_what_is_predicted(streams: int, tmp_path: Path) -> None:
    if (load := os.getloadavg()[0]) > 1:
        pytest.skip(f"the machine is not quiet: {load:.1f} processes want to run")
    with up(*ENGINES["predicted"]) as (address, found):
        metrics = guidellm(address, streams, 3 * streams, 256, tmp_path)
    measured_ms = metrics["inter_token_latency_ms"]["successful"]["percentiles"]["p50"]
    print(f"{streams} streams: {measured_ms:.2f} ms, predicted {found['itl_p50_us'] / 1e3:.2f}")
    assert measured_ms == pytest.approx(found["itl_p50_us"] / 1e3, rel=0.05)


@each_engine
def test_aiperf(engine: str, tmp_path: Path) -> None:
    with up(*ENGINES[engine]) as (address, _):
        model = "qwen3-8b" if engine == "predicted" else "tiny-qwen3"
        said([
            program("aiperf"), "profile", "--model", model, "--url", address,
            "--endpoint-type", "chat", "--streaming", "--concurrency", "2",
            "--request-count", "4", "--tokenizer", str(SHIPPED), "--isl", "64", "--osl", "16",
            "--extra-inputs", "ignore_eos:true", "--ui", "simple",
            "--output-artifact-dir", str(tmp_path / "aiperf"),
        ], tmp_path)  # fmt: skip
    (report,) = (tmp_path / "aiperf").rglob("profile_export_aiperf.json")
    figures = json.loads(report.read_text())
    assert figures["request_count"]["avg"] == 4
    assert figures["inter_token_latency"]["avg"] > 0
