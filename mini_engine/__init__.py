"""The engine that the course teaches and the labs cut holes into. `Server` predicts in Python."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mini_engine.server import Itl, Server

__version__ = "0.1.0"  # as in pyproject.toml
__all__ = ["Itl", "Server", "__version__"]


def __getattr__(name: str) -> Any:
    """What the package offers is imported when it is asked for, so that commands start fast."""
    if name not in __all__:
        raise AttributeError(f"module 'mini_engine' has no attribute {name!r}")
    from mini_engine import server

    return getattr(server, name)
