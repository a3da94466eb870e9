"""Makes the .venv in which everything runs. `make` calls it with the Python at hand:

    python3 make_venv.py core         what the demo and the labs need
    python3 make_venv.py gpu          and what `make gpu` needs
    python3 make_venv.py notebooks    and what `make jupyter` needs
    python3 make_venv.py test         and what `make test` needs

A machine with a GPU often has no network, but a Python with torch and all the rest in it. If the
torch of the Python at hand sees a GPU, .venv borrows that Python's packages. Then core and gpu
download nothing, and for the other two pip adds what is missing; BORROW=no refuses to borrow.
Otherwise pip fills .venv. Either way `.venv/bin/python -m ...` is the one way to run something.
What .venv was once made as, it stays; `make clean` removes it.

Needs the standard library alone, and of this project only what does, too. Out: .venv, and a line
that says where its packages are from. Exit 2 with one line where that cannot be done: what is
missing, and what to do.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NoReturn

from mini_engine.cli import ending

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
BORROWED = VENV / ".borrowed"  # whose packages these are; absent where pip brought them
READY = VENV / ".core"  # the stamp of `make`: .venv was made, and is what it is
REFUSED = ("no", "0")  # values of BORROW
TARGETS = {"notebooks": "jupyter"}  # what is made by a target of another name
PIP = (
    "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
    "--config-settings", "editable_mode=compat",  # a line with a path; else a program at each start
    "-e",
)  # fmt: skip


def main() -> int:
    """Returns the exit code."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    if wanted not in ("core", "gpu", "notebooks", "test"):
        raise ValueError(f"{wanted!r}: expected core, gpu, notebooks or test")
    if wanted == "core":
        make_core()
    elif BORROWED.exists():
        complete_borrowed(wanted)
    else:
        if wanted == "gpu":
            refuse_the_blind()
        install(f".[{wanted}]", wanted)
    return 0


def make_core() -> None:
    """.venv with the core packages, of the kind that it has been or that fits here."""
    gpu = None if READY.exists() or os.environ.get("BORROW") in REFUSED else gpu_seen()
    if gpu:
        borrow()
    if BORROWED.exists():
        if lacking := missing(requirements("core"), trying=True):
            stop(
                f"{owner()}, whose packages .venv borrows, lacks {', '.join(lacking)}: install "
                f"them there ({owner()} -m pip install {' '.join(lacking)}), or download "
                "everything: make clean, then make gpu BORROW=no"
            )
        print(f".venv borrows the packages of {owner()}{f', whose {gpu}' if gpu else ''}")
        return
    made = subprocess.run(
        [sys.executable, "-m", "venv", str(VENV)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        no_venv(made.stderr + made.stdout)
    install(".", "core")


# ---------------------------------------------------------------- borrowed


def gpu_seen() -> str | None:
    """What this Python's torch sees, in words; None without a torch or without a GPU."""
    try:
        torch = importlib.import_module("torch")
        return f"torch sees {torch.cuda.get_device_name()}" if torch.cuda.is_available() else None
    except Exception:  # a torch that cannot be imported sees nothing
        return None


def borrow() -> None:
    """An environment without pip that sees all that this Python sees, and this folder.

    --system-site-packages alone would not do: where this Python is a virtual environment itself,
    that names the packages of the Python beneath it. So the whole path goes into a .pth file.
    """
    try:
        import venv

        venv.create(VENV, system_site_packages=True, with_pip=False, symlinks=True)
    except Exception as error:  # Debian cuts the module out of its Python; a disk may be full
        no_venv(str(error))
    site = said("import sysconfig; print(sysconfig.get_path('purelib'))")
    seen = [str(ROOT), *(path for path in sys.path if Path(path).resolve() != ROOT)]
    Path(site, "borrowed.pth").write_text("".join(f"{path}\n" for path in seen if path), "utf-8")
    BORROWED.write_text(f"{sys.executable}\n", "utf-8")


def complete_borrowed(wanted: str) -> None:
    """What a target needs beside the core, of a .venv that was borrowed."""
    lacking = missing(requirements(wanted))
    if wanted == "gpu":
        if lacking:
            print(f"{owner()} lacks {', '.join(lacking)}: what needs them is left out")
        warn_of_versions(requirements(wanted))
    elif lacking and run_pip(f".[{wanted}]"):
        stop(
            f"make {TARGETS.get(wanted, wanted)} needs {', '.join(lacking)}, which {owner()} lacks "
            "and pip could not download; without them there are make gpu and "
            ".venv/bin/python -m pytest -m gpu"
        )


def owner() -> str:
    """The Python whose packages are borrowed."""
    return BORROWED.read_text("utf-8").strip()


def missing(wanted: list[str], *, trying: bool = False) -> list[str]:
    """The names of those of these packages that are not in .venv or, when trying, do not import."""
    names = [re.split(r"[^\w-]", line, maxsplit=1)[0] for line in wanted]
    program = (
        "import sys, importlib as i, importlib.metadata as m, importlib.util as u\n"
        "def there(name):\n"
        "    if u.find_spec(name.replace('-', '_')): return True\n"
        "    return any(m.distributions(name=name))  # it is imported by another name\n"
        "def works(name):\n"
        "    try: return i.import_module(name)\n"
        "    except Exception: return None\n"
        f"print(*[name for name in sys.argv[1:] if not {'works' if trying else 'there'}(name)])"
    )
    return said(program, *names).split()


def warn_of_versions(wanted: list[str]) -> None:
    """A line for each package that is older or newer than what this is tested with."""
    try:
        from packaging.requirements import Requirement
    except ImportError:  # pytest brings it
        return
    for line in map(Requirement, wanted):
        try:
            found = version(line.name)
        except PackageNotFoundError:
            continue
        if not line.specifier.contains(found, prereleases=True):
            print(f"{line.name} {found} is not {line.specifier}, with which this is tested")


# ---------------------------------------------------------------- by download


def install(what: str, wanted: str) -> None:
    if run_pip(what):
        stop(
            f"pip could not download what make {TARGETS.get(wanted, wanted)} needs; without a "
            "network, name a Python that has torch, numpy, matplotlib, rich, safetensors, "
            "tokenizers and pytest and sees a GPU: make clean, then make gpu "
            "PYTHON=/path/to/python3"
        )


def refuse_the_blind() -> None:
    """A .venv from an earlier download is not replaced, but neither does it measure a CPU here."""
    if os.environ.get("BORROW") in REFUSED:
        return
    if (gpu := gpu_seen()) and said("import torch; print(torch.cuda.is_available())") != "True":
        stop(
            f"no torch in .venv, which was made by download, sees a GPU, but {sys.executable}'s "
            f"{gpu}: make clean, then make gpu PYTHON={sys.executable}; or make gpu BORROW=no"
        )


def run_pip(what: str) -> int:
    return subprocess.run([PYTHON, *PIP, what], cwd=ROOT, check=False).returncode


# ---------------------------------------------------------------- both


def requirements(wanted: str) -> list[str]:
    """The lines of pyproject.toml for "core" or an extra, with the extras that it names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines: list[str] = []
    for line in project["dependencies"] if wanted == "core" else extras[wanted]:
        if own := re.fullmatch(rf"{project['name']}\[(.*)\]", line):
            lines += [inner for extra in own[1].split(",") for inner in requirements(extra)]
        else:
            lines.append(line)
    return lines


def said(program: str, *words: str) -> str:
    """What a program prints in .venv; "" where it fails."""
    done = subprocess.run(
        [PYTHON, "-c", program, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def no_venv(error: str) -> NoReturn:
    lines = error.strip().splitlines()
    reason = lines[-1] if lines[0].startswith("Traceback") else " ".join(error.split())[:200]
    stop(
        f"{sys.executable} cannot make a .venv ({reason}): on Debian or Ubuntu apt install "
        "python3-venv, or name another Python: make PYTHON=python3.12"
    )


def stop(line: str) -> NoReturn:
    print(line, file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    sys.exit(ending.program("make_venv", main))
