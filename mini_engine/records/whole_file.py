"""Files that are written whole or not at all.

In:  a path and what the file is to hold. Out: the file; or an OSError that names it, the old file
still there, and nothing beside it.

A path is asked about (`check_out`) before the work whose result goes there begins.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file beside the path, then put it in its place: an interrupt or a full disk leaves
    the old one. Text becomes UTF-8. Makes folders. What is no file, such as /dev/stdout or a pipe,
    is written to as it is. Raises OSError with the path in it."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    target = Path(os.path.realpath(path))  # a link stays a link
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(f"{path}: a folder, expected a file's name")
    beside = target
    if target.is_file() or not target.exists():
        # of a name as long as a name may be, the beginning
        beside = target.with_name(f"{target.name[:60]}.{os.getpid()}.part")
    try:
        with open(beside, "wb") as file:
            if beside is not target and target.exists():
                os.chmod(beside, target.stat().st_mode & 0o777)  # who may read it stays
            file.write(data)
            file.flush()
            if beside is not target:
                os.fsync(file.fileno())
        if beside is not target:
            os.replace(beside, target)
    except BaseException as error:
        if beside is not target:
            beside.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            raise type(error)(error.errno, error.strerror, str(path)) from None
        raise


def check_out(path: Path, endings: Sequence[str] = ()) -> Path:
    """The path, if a file can be written there and its name ends in one of `endings` (any, where
    there are none). Raises ValueError in words, and makes nothing."""
    if endings and path.suffix.lower() not in endings:
        raise ValueError(f"{path}: expected a name that ends in {' or '.join(endings)}")
    if path.is_dir():
        raise ValueError(f"{path}: a folder, expected a file's name")
    if path.exists() and not os.access(path, os.W_OK):
        raise ValueError(f"{path}: cannot be written: permission denied")
    if not path.exists() or path.is_file():  # its folder too: it is written beside and then moved
        check_folder(Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent)
    return path


def check_folder(path: Path) -> Path:
    """The path, if it is a folder that files can be written into, or if one can be made there.
    Raises ValueError in words, and makes nothing."""
    near = path
    while not near.exists() and near != near.parent:
        near = near.parent
    if not near.is_dir():
        what = "" if near == path else f"{near} is "
        raise ValueError(f"{path}: {what}a file, expected a folder")
    try:
        with tempfile.TemporaryFile(dir=near):
            return path
    except OSError as error:
        raise ValueError(f"{path}: cannot be written to ({error.strerror})") from None
