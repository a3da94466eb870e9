"""Which kind of CUDA graph runs which kind of batch, and what an attention backend allows.

In: the mode that was asked for ("FULL_AND_PIECEWISE"), the attention backend's support for graph
capture, and how the model was compiled. Out: the mode that will be used.

A step runs as NONE (eagerly, without graphs), as PIECEWISE (graphs between the attention ops) or
as FULL (one graph). A mode says which of the three for each kind of batch:

    mode                  decode batch    mixed batch (some request in prefill)
    NONE                  NONE            NONE
    PIECEWISE             PIECEWISE       PIECEWISE
    FULL                  FULL            FULL
    FULL_DECODE_ONLY      FULL            NONE
    FULL_AND_PIECEWISE    FULL            PIECEWISE          <- vLLM's default

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
    """How batches run: a run-time mode for all, or a pair (decode batches, mixed batches)."""

    NONE = 0
    PIECEWISE = 1
    FULL = 2
    FULL_DECODE_ONLY = (FULL, NONE)
    FULL_AND_PIECEWISE = (FULL, PIECEWISE)

    def separate_routine(self) -> bool:
        """Do decode batches get graphs of their own?"""
        return isinstance(self.value, tuple)

    def decode_mode(self) -> CUDAGraphMode:
        """The run-time mode of a batch in which every request decodes."""
        return CUDAGraphMode(self.value[0]) if self.separate_routine() else self

    def mixed_mode(self) -> CUDAGraphMode:
        """The run-time mode of a batch in which some request is still in prefill."""
        return CUDAGraphMode(self.value[1]) if self.separate_routine() else self

    def has_full_cudagraphs(self) -> bool:
        return self.decode_mode() is CUDAGraphMode.FULL

    def has_piecewise_cudagraphs(self) -> bool:
        return self.mixed_mode() is CUDAGraphMode.PIECEWISE

    def without_piecewise(self) -> CUDAGraphMode:
        """The same mode for a model whose forward pass nothing can cut into pieces."""
        if self is CUDAGraphMode.PIECEWISE:
            return CUDAGraphMode.NONE
        if self is CUDAGraphMode.FULL_AND_PIECEWISE:
            return CUDAGraphMode.FULL_DECODE_ONLY
        return self

    def __str__(self) -> str:
        return self.name


class CompilationMode(IntEnum):
    """How the model is compiled (vLLM's `-O0` to `-O3` of 2025 were levels; these are modes)."""

    NONE = 0
    STOCK_TORCH_COMPILE = 1
    DYNAMO_TRACE_ONCE = 2
    VLLM_COMPILE = 3


class AttentionCGSupport(IntEnum):
    """Which batches an attention backend can run inside a captured graph, in rising order."""

    NEVER = 0
    UNIFORM_SINGLE_TOKEN_DECODE = 1  # every request has one new token
    UNIFORM_BATCH = 2  # all have equally many new tokens: enough for speculative decoding
    ALWAYS = 3  # any mix of prefill and decode


def resolve_mode(
    mode: CUDAGraphMode | str,
    support: AttentionCGSupport | str,
    *,
    attention_in_splitting_ops: bool,
    compilation_mode: CompilationMode | int | str,
    uniform_decode_query_len: int = 1,
    piecewise_capture_available: bool = True,
) -> CUDAGraphMode:
    """The mode that will be used, given what attention backend and compiler can do.

    `support`: of the weakest attention backend in the model.
    `attention_in_splitting_ops`: the model is split at its attention ops.
    `uniform_decode_query_len`: 1 + speculative tokens.
    `piecewise_capture_available`: the compiler or breakable capture can cut the forward pass.

    Four rules in order, each applied to the mode that the one before it left:

    1. FULL for mixed batches needs support ALWAYS. With less, the mode becomes FULL_AND_PIECEWISE
       if the model is split at attention, else FULL_DECODE_ONLY. With NEVER, as in vLLM, it is a
       ValueError that says to ask for PIECEWISE.
    2. FULL for decode batches needs more than NEVER. Otherwise the mode becomes PIECEWISE if the
       compiler splits the model at attention (compilation mode VLLM_COMPILE), else NONE.
    3. FULL for decode batches with several tokens a request needs UNIFORM_BATCH. Otherwise the
       mode becomes PIECEWISE if the model is split at attention, else NONE.
    4. If nothing can cut the forward pass, PIECEWISE goes: `without_piecewise()`.
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
