"""Which rows, chunks and warps a program of a matrix-vector product gets.

In:  the shape of a weight (N, K), and whether a program needs rows of one half or of two.
Out: a frozen `GemvPlan` or `SkinnyPlan`. Pure arithmetic; nothing is measured or tuned.

A decode step reads every weight once and computes next to nothing, so the plan has one aim: enough
bytes on their way. By Little's law a multiprocessor needs about bandwidth / SMs × latency
= 4.8 TB/s / 132 × 0.6 µs = 22 KB in flight on an H200. So a program loads its whole tile before it
computes anything: no loop over K, no pipeline, just registers.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_GEMV_TOKENS = 4  # above it, multiplying in registers costs more than the tensor cores' layout
MAX_SKINNY_TOKENS = 16  # rows of one tensor-core tile; above it a library's GEMM is better

TILE_ELEMENTS = 16_384  # of a weight in one program: 32 KB in bf16
THREAD_ELEMENTS = 64  # of a weight in one thread: 32 registers in bf16, eight 16-byte loads
MIN_PROGRAMS = 512  # about four on each of 132 multiprocessors
MAX_IDLE = 0.15  # of a program's columns that may lie beyond K


@dataclass(frozen=True)
class GemvPlan:
    """A program multiplies `rows` rows of the weight, in `chunks` chunks of `chunk` columns."""

    rows: int
    warps: int
    chunk: int
    chunks: int

    def num_programs(self, num_rows: int) -> int:
        """Programs for a weight of `num_rows` rows (pairs of rows, where the plan is for pairs)."""
        return -(-num_rows // self.rows)


@dataclass(frozen=True)
class SkinnyPlan:
    """A program multiplies `rows` rows by `split_width` columns, `chunk` columns at a time, with
    `stages` chunks on their way; `splits` programs share a row and their parts are added."""

    rows: int
    chunk: int
    split_width: int
    splits: int
    warps: int = 4
    stages: int = 4


def gemv_plan(num_rows: int, width: int, *, pairs: bool = False) -> GemvPlan:
    """The plan for a weight (num_rows, width); with `pairs`, of (2 · num_rows, width), where a
    program takes row i of both halves (gate and up), so that its tile is twice as large.

    rows: the largest of 8, 4, 2, 1 (with pairs of 4, 2, 1) whose tile has at most TILE_ELEMENTS
    elements and that leaves at least MIN_PROGRAMS programs; 1 if none does. chunk: `chunk_of` the
    width, up to 2048; chunks: as many as cover it. warps: 8 where each of their 8 · 32 threads gets
    THREAD_ELEMENTS or more of the tile (of rows · width elements, twice that with pairs), else 4.
    """
    halves = 2 if pairs else 1
    rows = 8 // halves
    while rows > 1 and (
        rows * halves * width > TILE_ELEMENTS or -(-num_rows // rows) < MIN_PROGRAMS
    ):
        rows //= 2
    chunk = chunk_of(width, 2048)
    warps = 8 if rows * halves * width >= 8 * 32 * THREAD_ELEMENTS else 4
    return GemvPlan(rows, warps, chunk, -(-width // chunk))


def skinny_plan(num_rows: int, width: int, *, split: bool = False) -> SkinnyPlan:
    """The plan for up to 16 tokens. `split` allows several programs a row: a weight of 1024 rows in
    tiles of 16 makes 64 programs, which is half of the multiprocessors."""
    rows, chunk = 16, chunk_of(width, 128)
    chunks = -(-width // chunk)
    splits = 1
    while split and 2 * splits <= chunks and -(-num_rows // rows) * splits < MIN_PROGRAMS // 2:
        splits *= 2
    return SkinnyPlan(rows, chunk, -(-chunks // splits) * chunk, splits)


def chunk_of(width: int, largest: int) -> int:
    """The largest power of two from 16 to `largest` whose multiple at or above `width` leaves no
    more than MAX_IDLE of itself unused; 16 if none does."""
    chunk = largest
    while chunk > 16 and -(-width // chunk) * chunk > width * (1 + MAX_IDLE):
        chunk //= 2
    return chunk
