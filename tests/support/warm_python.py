"""A Python that has imported the heavy packages before it is started.

In:  the words behind `python`. Out: what that Python would print, write and end with.

A command of a chapter, or a stage of `make gpu`, spends most of its time on importing PyTorch: two
seconds or three, in a hundred processes. `warm_python()` is the path of a program that stands in
for `sys.executable`: it hands its words, folder, environment and open files to a server, which
forks. The fork imports the engine anew, and all else that the server has not (`HEAVY`); what it
starts in its turn by `sys.executable` is such a fork, too. When the program is killed, its fork is.

Words that are neither -m nor -c go to the true Python, and so does all with TRITON_INTERPRET.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import io
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
# torch._dynamo: the first custom op of a process imports it. That imports Triton, whose functions
# are made for the compiler then: what wants the interpreter goes to the true Python.
HEAVY = ("numpy", "matplotlib.pyplot", "rich.console", "rich.table", "safetensors",
         "ipykernel.kernelapp", "ipywidgets", "matplotlib_inline.backend_inline",  # of notebooks
         "torch", "torch._dynamo", "triton")  # fmt: skip
MOST_FILES = 16

PROGRAM = """#!{python} -IS
import json, os, socket, struct, sys
words = sys.argv[1:]
if "TRITON_INTERPRET" in os.environ or len(words) < 2 or words[0] not in ("-m", "-c"):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
files = []
for name in os.listdir("/dev/fd"):
    try:
        if os.get_inheritable(int(name)):
            files.append(int(name))
    except OSError:
        pass  # the listing itself
job = dict(words=words, where=os.getcwd(), environment=dict(os.environ), files=files)
text = json.dumps(job).encode()
to_server = socket.socket(socket.AF_UNIX)
to_server.connect({address!r})
socket.send_fds(to_server, [struct.pack("I", len(text))], files)
to_server.sendall(text)
status = os.waitstatus_to_exitcode(struct.unpack("i", to_server.recv(4))[0])
if status < 0:
    os.kill(os.getpid(), -status)
os._exit(status)
"""


@cache
def warm_python() -> str:
    """The program's path; its server ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    address, program = folder / "socket", folder / "python"
    program.write_text(PROGRAM.format(python=sys.executable, address=str(address)))
    program.chmod(0o755)
    lines = f"from {__name__} import serve; job = serve({str(address)!r}, {str(program)!r}); job()"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    server = subprocess.Popen(
        [sys.executable, "-c", lines], env=environment, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    atexit.register(_end, server, folder)
    return str(program)


def _end(server: subprocess.Popen[str], folder: Path) -> None:
    server.kill()
    server.wait()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


# ---------------------------------------------------------------- the server


def serve(address: str, program: str) -> Any:
    """Returns in forks alone, with what the fork has to do; the server ends with its stdin."""
    gc.disable()  # thousands of modules, and nothing to throw away
    for name in HEAVY:
        with contextlib.suppress(ImportError):
            __import__(name)
    gc.freeze()  # the forks' collector need not look through it, so its pages are not copied
    gc.enable()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen(64)
    ended, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(tell)
    running: dict[socket.socket, int] = {}
    print("ready", flush=True)
    while True:
        ready = select.select([listening, ended, 0, *running], [], [])[0]
        if 0 in ready:
            raise SystemExit
        for waiting in [one for one in running if one in ready]:  # it was killed
            os.kill(running.pop(waiting), signal.SIGKILL)
            waiting.close()
        if ended in ready:
            os.read(ended, 64)
            _tell_of_ended(running)
        if listening in ready:
            waiting, _ = listening.accept()
            job, files = _received(waiting)
            if pid := os.fork():
                running[waiting] = pid
                for file in files:
                    os.close(file)
                continue
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for mine in (listening, waiting, *running):
                mine.close()
            os.close(ended)
            os.close(tell)
            return lambda: _do(job, files, program)


def _tell_of_ended(running: dict[socket.socket, int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        for waiting in [one for one, its in running.items() if its == pid]:
            del running[waiting]
            with contextlib.suppress(BrokenPipeError):
                waiting.sendall(struct.pack("i", status))
            waiting.close()


def _received(waiting: socket.socket) -> tuple[dict[str, Any], list[int]]:
    size, files, _, _ = socket.recv_fds(waiting, 4, MOST_FILES)
    text = b""
    while len(text) < struct.unpack("I", size)[0]:
        text += waiting.recv(1 << 20)
    return json.loads(text), files


# ---------------------------------------------------------------- the fork


def _do(job: dict[str, Any], files: list[int], program: str) -> None:
    """Become the process that was asked for, and end."""
    high = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 200) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(high, job["files"], strict=True):
        os.dup2(file, number)
        os.close(file)
    os.chdir(job["where"])
    os.environ.clear()
    os.environ.update(job["environment"])
    through = os.environ.get("PYTHONUNBUFFERED", "") != ""
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        mode = "rb" if number == 0 else "wb"
        raw = io.open(number, mode, closefd=False)  # noqa: SIM115, UP020
        lines = number == 2 or os.isatty(number)
        text = io.TextIOWrapper(raw, "utf-8", line_buffering=lines, write_through=through)
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)
    kind, what, *more = job["words"]
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = ["", *filter(None, places), *(p for p in sys.path if p not in ("", str(ROOT)))]
    sys.executable = program
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    status = 0
    try:
        if kind == "-m":
            sys.argv = ["-m", *more]
            sys.path[0] = os.getcwd()
            runpy._run_module_as_main(what)  # type: ignore[attr-defined]
        else:
            sys.argv = ["-c", *more]
            names = sys.modules["__main__"].__dict__
            exec(compile(what, "<string>", "exec"), names)
    except SystemExit as end:
        status = _status(end.code)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _status(code: Any) -> int:
    if code is None or isinstance(code, int):
        return (code or 0) & 255
    print(code, file=sys.stderr)
    return 1
