"""Which kind of CUDA graph runs which kind of batch, and what a backend allows.

In: the mode that was asked for ("FULL_AND_PIECEWISE"), how much graph capture the attention
backend bears, and how the model was compiled. Out: the mode that will really be used.

A *mode* answers two questions at once, one for each kind of batch:

    mode                  decode-only batch   mixed batch (some prefill)
    NONE                  eager               eager
    PIECEWISE             piecewise           piecewise
    FULL                  full                full
    FULL_DECODE_ONLY      full                eager
    FULL_AND_PIECEWISE    full                piecewise          <- vLLM's default

Behaviour is vLLM 0.33's: `vllm/config/compilation.py` (`CUDAGraphMode`,
`CompilationConfig.resolve_cudagraph_mode_and_sizes`) and `vllm/v1/attention/backend.py`
(`AttentionCGSupport`).
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import TypeVar

E = TypeVar("E", bound=Enum)


def parse(kind: type[E], given: E | int | str) -> E:
    """The member of `kind` that `given` means: a member, its value, or its name in any case."""
    if not isinstance(given, str):
        return kind(given)
    if given.upper() not in kind.__members__:
        names = ", ".join(kind.__members__)
        raise ValueError(f"unknown {kind.__name__} {given!r}: give one of {names}")
    return kind[given.upper()]


class CUDAGraphMode(Enum):
    """How batches run.

    A mode with two answers holds them as a pair (decode batches, mixed batches). Only the three
    plain modes are *run-time* modes: one step is eager, or piecewise, or one full graph.
    """

    NONE = 0
    PIECEWISE = 1
    FULL = 2
    FULL_DECODE_ONLY = (FULL, NONE)
    FULL_AND_PIECEWISE = (FULL, PIECEWISE)

    def _answers(self) -> tuple[CUDAGraphMode, CUDAGraphMode]:
        decode, mixed = self.value if isinstance(self.value, tuple) else (self.value, self.value)
        return CUDAGraphMode(decode), CUDAGraphMode(mixed)

    def decode_mode(self) -> CUDAGraphMode:
        """What a batch runs as when every request decodes."""
        return self._answers()[0]

    def mixed_mode(self) -> CUDAGraphMode:
        """What a batch runs as when some request is still in prefill."""
        return self._answers()[1]

    def separate_routine(self) -> bool:
        """Do decode batches get graphs of their own?"""
        return isinstance(self.value, tuple)

    def has_mode(self, mode: CUDAGraphMode | str) -> bool:
        """Is the run-time mode `mode` one of the two answers? ValueError for a pair."""
        mode = parse(CUDAGraphMode, mode)
        if mode.separate_routine():
            raise ValueError(f"{mode} is not a run-time mode: ask for NONE, PIECEWISE or FULL")
        return mode in self._answers()

    def max_cudagraph_mode(self) -> CUDAGraphMode:
        """The larger of the two answers: NONE < PIECEWISE < FULL."""
        return max(self._answers(), key=lambda mode: mode.value)

    def has_full_cudagraphs(self) -> bool:
        return self.has_mode(CUDAGraphMode.FULL)

    def has_piecewise_cudagraphs(self) -> bool:
        return self.has_mode(CUDAGraphMode.PIECEWISE)

    def requires_piecewise_compilation(self) -> bool:
        """Must the model be cut into pieces (by the compiler, or by breaks while capturing)?"""
        return self.has_piecewise_cudagraphs()

    def without_piecewise(self) -> CUDAGraphMode:
        """The same mode for a model that nothing has cut into pieces."""
        if self is CUDAGraphMode.PIECEWISE:
            return CUDAGraphMode.NONE
        if self is CUDAGraphMode.FULL_AND_PIECEWISE:
            return CUDAGraphMode.FULL_DECODE_ONLY
        return self

    @classmethod
    def valid_runtime_modes(cls) -> frozenset[CUDAGraphMode]:
        """The modes that one step can run as."""
        return frozenset(mode for mode in cls if not mode.separate_routine())

    def is_valid_runtime_mode(self) -> bool:
        return self in self.valid_runtime_modes()

    def __bool__(self) -> bool:
        return self is not CUDAGraphMode.NONE

    def __str__(self) -> str:
        return self.name


class CompilationMode(IntEnum):
    """How the model is compiled (vLLM's `-O0` to `-O3` of 2025 were levels; these are modes)."""

    NONE = 0
    STOCK_TORCH_COMPILE = 1
    DYNAMO_TRACE_ONCE = 2
    VLLM_COMPILE = 3


class AttentionCGSupport(IntEnum):
    """Which batches an attention backend can run inside a captured graph; more is greater."""

    NEVER = 0
    UNIFORM_SINGLE_TOKEN_DECODE = 1
    """Every request has one new token."""
    UNIFORM_BATCH = 2
    """Every request has the same number of new tokens: enough for speculative decoding."""
    ALWAYS = 3
    """Any batch, prefill and decode mixed."""


def resolve_mode(
    mode: CUDAGraphMode | str,
    support: AttentionCGSupport | str,
    *,
    attention_in_splitting_ops: bool,
    compilation_mode: CompilationMode | int | str,
    uniform_decode_query_len: int = 1,
    piecewise_capture_available: bool = True,
) -> CUDAGraphMode:
    """The mode that will really be used, after each thing that cannot be has been taken away.

    `support` is that of the weakest attention backend in the model.
    `attention_in_splitting_ops`: the model is split at its attention ops.
    `uniform_decode_query_len` = 1 + speculative tokens.
    `piecewise_capture_available`: something can cut the forward pass into pieces, be it the
    compiler or breakable capture.

    Four questions in a row, each about the mode that the one before it left:

    1. Mixed batches are to run FULL, which only support ALWAYS bears. Less: FULL_AND_PIECEWISE
       if split at attention, else FULL_DECODE_ONLY. NEVER: ValueError that says to ask for
       PIECEWISE, as vLLM raises it.
    2. Decode batches are to run FULL, and support is NEVER: PIECEWISE if the compiler cuts the
       model (compilation mode VLLM_COMPILE) and at attention, else NONE.
    3. Decode batches are to run FULL with several tokens a request, and support is less than
       UNIFORM_BATCH: PIECEWISE if split at attention, else NONE.
    4. Nothing can cut the forward pass: the same `without_piecewise()`.
    """
    mode, support = parse(CUDAGraphMode, mode), parse(AttentionCGSupport, support)
    compilation_mode = parse(CompilationMode, compilation_mode)
    full, piecewise = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE
    split = attention_in_splitting_ops

    if mode.mixed_mode() is full and support < AttentionCGSupport.ALWAYS:
        if support is AttentionCGSupport.NEVER:
            raise ValueError(
                f"mode {mode} on an attention backend with graph support NEVER: "
                "ask for PIECEWISE, and compile with VLLM_COMPILE"
            )
        mode = CUDAGraphMode.FULL_AND_PIECEWISE if split else CUDAGraphMode.FULL_DECODE_ONLY

    if mode.decode_mode() is full and support is AttentionCGSupport.NEVER:
        cut_by_compiler = compilation_mode is CompilationMode.VLLM_COMPILE and split
        mode = piecewise if cut_by_compiler else CUDAGraphMode.NONE

    several_tokens = uniform_decode_query_len > 1
    if mode.decode_mode() is full and several_tokens and support < AttentionCGSupport.UNIFORM_BATCH:
        mode = piecewise if split else CUDAGraphMode.NONE

    return mode if piecewise_capture_available else mode.without_piecewise()
