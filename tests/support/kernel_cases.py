"""What the kernel tests share: random paged batches, tolerances, and compiling without a GPU."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from struct import unpack_from
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

NAN = float("nan")

# ---------------------------------------------------------------- random inputs


@dataclass(frozen=True)
class Paged:
    """A KV cache with some requests in it, scattered over shuffled blocks."""

    k_cache: Tensor  # (num_blocks, block_size, kv_heads, D)
    v_cache: Tensor
    block_table: Tensor  # (R, max_blocks) int32, the null block beyond a request's last
    context_lens: Tensor  # (R,) int32
    slots: list[list[int]]  # of each request, the slot of each position


def paged(
    contexts: list[int], kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype
) -> Paged:
    """Only rows of live positions hold numbers: everything else, the null block too, is NaN."""
    needed = [-(-context // block_size) for context in contexts]
    free = (torch.randperm(sum(needed)) + 1).tolist()
    table = torch.zeros(len(contexts), max(needed) + 1, dtype=torch.int32)
    shape = (sum(needed) + 1, block_size, kv_heads, head_dim)
    k_cache, v_cache = (torch.full(shape, NAN, dtype=dtype) for _ in range(2))
    slots = []
    for r, (context, blocks) in enumerate(zip(contexts, needed, strict=True)):
        own = [free.pop() for _ in range(blocks)]
        table[r, :blocks] = torch.tensor(own)
        slots.append([own[p // block_size] * block_size + p % block_size for p in range(context)])
        for cache in (k_cache, v_cache):
            rows = torch.randn(context, kv_heads, head_dim).to(dtype)
            cache.flatten(0, 1)[slots[r]] = rows
    return Paged(k_cache, v_cache, table, torch.tensor(contexts, dtype=torch.int32), slots)


def rotary(head_dim: int, positions: int = 256) -> tuple[Tensor, Tensor]:
    """cos and sin (positions, D/2) float32."""
    frequency = 10_000.0 ** (-torch.arange(head_dim // 2) * 2 / head_dim)
    angle = torch.arange(positions).unsqueeze(1) * frequency
    return angle.cos(), angle.sin()


def assert_close(got: Tensor, expected: Tensor, *, terms: int = 1) -> None:
    """Equal up to the order of a float32 sum of `terms` terms of size 1, and, in bf16, up to one
    rounding either way of the reference's last bit (8 bits of precision) plus, where a kernel must
    round its tensor-core operands too, those of `terms` random operands."""
    if got.dtype == torch.float32:
        torch.testing.assert_close(got, expected, rtol=2e-5, atol=4e-7 * (1 + terms) ** 0.5)
    else:
        noise = 2**-8 * (1 + (terms > 1))
        torch.testing.assert_close(got, expected, rtol=2**-7, atol=noise)


# ---------------------------------------------------------------- ahead of time

BRANCH = re.compile(r"(\b(?:BRA|BSSY)\b.*\b0x)([0-9a-f]+)$")
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
BF16, F32, I32, I64 = "*bf16", "*fp32", "*i32", "*i64"
# The types of arguments in a step of a model in bf16, by their names in the kernels.
BF16_NAMES = "out x residual norm_weight weight bias gate_up q k_cache v_cache qkv q_norm k_norm"
F32_NAMES = "cos sin sums stats partials values logits"
I32_NAMES = "input_ids positions slot_mapping block_table context_lens query_lens counters indices"
POINTERS = {
    **dict.fromkeys(BF16_NAMES.split(), BF16),
    **dict.fromkeys(F32_NAMES.split(), F32),
    **dict.fromkeys(I32_NAMES.split(), I32),
    "tokens": I64,
}
I32_SCALARS = ("table_stride", "num_reqs", "end")
SCALARS = {"eps": "fp32", "scale": "fp32", **dict.fromkeys(I32_SCALARS, "i32")}
COMPILE_TIMEOUT_S = 60  # a badly shaped kernel keeps ptxas busy for longer


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of a kernel."""

    registers: int  # of a thread
    spilled_bytes: int  # stack and local memory of a thread
    shared_bytes: int  # of a program
    threads: int  # of a program
    capability: int
    code: bytes

    @cached_property
    def sass(self) -> Sequence[str]:
        """The instructions, in order."""
        return disassembled([self.code], self.capability)[0]

    @property
    def resident(self) -> int:
        """Programs that a multiprocessor of sm_90 holds at once: 65,536 registers, given out in
        eights, 2,048 threads, 227 KB of shared memory, 32 programs."""
        by_registers = 65_536 // (-(-self.registers // 8) * 8 * self.threads)
        by_shared = 227 * 1024 // (self.shared_bytes + 1024)
        return min(by_registers, 2048 // self.threads, by_shared, 32)

    def where(self, pattern: str) -> list[int]:
        """Places of the instructions that match."""
        return [i for i, line in enumerate(self.sass) if re.search(pattern, line)]

    @property
    def instructions_after_wait(self) -> int:
        """Up to the last write, compiled for sm_90 with PDL: what a warp issues when the kernel
        before has ended."""
        (wait,) = self.where(r"\bACQBULK\b")
        return max(self.where(r"\b(STG|ATOMG|RED)\b")) - wait


def build_for(
    kernel: Any,
    pointers: dict[str, str],
    constants: dict[str, Any],
    *,
    capability: int,
    num_warps: int,
    num_stages: int = 3,
    scalars: dict[str, str] | None = None,
) -> Any:
    """What Triton makes of a kernel. `pointers` and `scalars`: the types of the arguments;
    `constants`: the values of the others, None where an optional tensor is absent. A pointer is
    aligned to 16 bytes, as torch does it."""
    types = {**pointers, **(scalars or {})}
    names = kernel.arg_names
    signature = {n: "constexpr" if n in constants else types[n] for n in names}
    place = names.index
    aligned = [n for n in pointers if n in names and n not in constants]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(place(name),): value for name, value in constants.items()},
        attrs={(place(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    options = {"num_warps": num_warps, "num_stages": num_stages}
    with _time_limit(COMPILE_TIMEOUT_S):
        return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def compile_for(
    kernel: Any, pointers: dict[str, str], constants: dict[str, Any], **options: Any
) -> Compiled:
    """The same as `build_for`, taken apart."""
    made = build_for(kernel, pointers, constants, **options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        usage = _tool("cuobjdump", "--dump-resource-usage", file.name)
    used = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    return Compiled(
        registers=used["REG"],
        spilled_bytes=used["STACK"] + used["LOCAL"],
        shared_bytes=made.metadata.shared,
        threads=32 * options["num_warps"],
        capability=options["capability"],
        code=_machine_code(made.asm["cubin"]),
    )


def disassembled(codes: Sequence[bytes], capability: int) -> list[Sequence[str]]:
    """The instructions of each, one in 16 bytes. The tool takes 0.4 s to start, so it is started
    once for all. A branch goes to an address of its own kernel, as it does alone."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"".join(codes))
        file.flush()
        listing = _tool("nvdisasm", "-ndf", "-b", f"SM{capability}", file.name)
    lines = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", listing)
    found: list[Sequence[str]] = []
    begin = 0
    for code in codes:

        def own(branch: re.Match[str], begin: int = begin) -> str:
            return f"{branch[1]}{int(branch[2], 16) - begin:x}"

        end = begin + len(code)
        found.append([BRANCH.sub(own, line) for line in lines[begin // 16 : end // 16]])
        begin = end
    assert begin == 16 * len(lines)
    return found


def _machine_code(cubin: bytes) -> bytes:
    """The one section of an ELF file whose name begins with .text."""
    (table,), (many, names) = unpack_from("<Q", cubin, 40), unpack_from("<HH", cubin, 60)
    headers = [unpack_from("<II4Q", cubin, table + 64 * i) for i in range(many)]
    (where,) = (h[4:6] for h in headers if cubin.startswith(b".text", headers[names][4] + h[0]))
    return cubin[where[0] : sum(where)]


def _tool(name: str, *arguments: str) -> str:
    command = [str(TOOLS / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"compiling took more than {seconds} s: give the kernel smaller tiles")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def interpreting_environment() -> dict[str, str]:
    """This process's environment with the interpreter on, and without pytest's own traces. What
    hypothesis keeps goes where it goes without it, wherever the process runs."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "COV"))}
    examples = Path(__file__).parents[2] / ".hypothesis"
    return {
        **kept,
        "TRITON_INTERPRET": "1",
        "OMP_NUM_THREADS": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(examples),
    }
