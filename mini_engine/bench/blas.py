"""Which library multiplies: cuBLAS or cuBLASLt, for a whole run or for one graph.

In:  a library's name. Out: PyTorch's preference, set for the process or around a capture.

    prefer(backend, "cublaslt")             # from here on, everything that this process launches
    with under("cublas"):                   # and back to what it was before
        graphs.capture()

A preference is read when a product is *launched*: PyTorch then asks that library for a kernel, and
a capture writes this kernel into the graph. A replay asks nobody. So a graph stays with the library
that was preferred while it was captured, and switching afterwards changes eager steps only. Two
arms in one process can differ in the library if each captures under its own.

The preference is one where both libraries can do the product; where one cannot, PyTorch takes the
other (`torch.backends.cuda.preferred_blas_library`, torch 2.13).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from mini_engine.bench.decode_setup import DecodeSetup
from mini_engine.bench.our_variants import OursGraph
from mini_engine.cuda.graphs.backend import GraphBackend

LIBRARIES = ("cublas", "cublaslt")


def no_blas(backend: GraphBackend) -> str | None:
    """Why neither library can be chosen here, in one line; None where they can."""
    return "cuBLAS and cuBLASLt multiply on a GPU only" if backend.emulated else None


def preferred() -> str:
    """The library in force: "cublas", "cublaslt", or another that PyTorch was built with."""
    library: Any = torch.backends.cuda.preferred_blas_library()
    return str(library.name).lower()


def prefer(backend: GraphBackend, library: str) -> None:
    """Prefer it in all that this process launches from now on. ValueError where it cannot be."""
    if reason := no_blas(backend):
        raise ValueError(f"--blas {library}: {reason}: leave it out, or run on an NVIDIA GPU")
    torch.backends.cuda.preferred_blas_library(library)


@contextmanager
def under(library: str) -> Iterator[None]:
    """Prefer it inside, and afterwards what was preferred before."""
    before = preferred()
    torch.backends.cuda.preferred_blas_library(library)
    try:
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(before)


class OursGraphUnder(OursGraph):
    """`OursGraph`, warmed up and captured while this library is preferred."""

    def __init__(self, setup: DecodeSetup, library: str) -> None:
        super().__init__(setup)
        self.library = library

    def prepare(self) -> None:
        with under(self.library):
            super().prepare()
