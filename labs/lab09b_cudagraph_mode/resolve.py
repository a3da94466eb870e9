"""What becomes of a mode: what an attention backend allows, and what the compiler can cut.

In: the mode that was asked for ("FULL_AND_PIECEWISE"), the attention backend's support for graph
capture, and how the model was compiled. Out: the mode that will be used.

Behaviour is vLLM 0.33's: `CompilationConfig.resolve_cudagraph_mode_and_sizes` in
`vllm/config/compilation.py`, and `AttentionCGSupport` in `vllm/v1/attention/backend.py`.
"""

from __future__ import annotations

from enum import IntEnum

from mini_engine.dispatch.modes import CUDAGraphMode, parse


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


def without_piecewise(mode: CUDAGraphMode) -> CUDAGraphMode:
    """The same mode for a model whose forward pass nothing can cut into pieces."""
    if mode is CUDAGraphMode.PIECEWISE:
        return CUDAGraphMode.NONE
    if mode is CUDAGraphMode.FULL_AND_PIECEWISE:
        return CUDAGraphMode.FULL_DECODE_ONLY
    return mode


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
    `attention_in_splitting_ops`: the model is *split* at its attention ops.
    `compilation_mode`: VLLM_COMPILE means that vLLM's own compiler does the splitting.
    `uniform_decode_query_len`: tokens of a decoding request, 1 + speculative tokens.
    `piecewise_capture_available`: the compiler or breakable capture can cut the forward pass.

    What becomes of a mode, by the backend's support (`=`: it stays). NONE stays everywhere, and
    PIECEWISE wherever the table does not list it. What it does not list at all follows from the
    same few questions. ValueError: nothing can run what was asked; the message says to ask for
    PIECEWISE. A word that names no mode or no support is a ValueError as well (`parse`).

        asked for             NEVER       SINGLE_TOKEN..      UNIFORM_BATCH       ALWAYS

        split, VLLM_COMPILE, one token a request
        FULL                  ValueError  FULL_AND_PIECEWISE  FULL_AND_PIECEWISE  =
        FULL_AND_PIECEWISE    PIECEWISE   =                   =                   =
        FULL_DECODE_ONLY      PIECEWISE   =                   =                   =

        not split, VLLM_COMPILE, one token a request
        FULL                  ValueError  FULL_DECODE_ONLY    FULL_DECODE_ONLY    =
        FULL_AND_PIECEWISE    NONE        =                   =                   =
        FULL_DECODE_ONLY      NONE        =                   =                   =

        split, VLLM_COMPILE, several tokens a request
        FULL                  ValueError  PIECEWISE           FULL_AND_PIECEWISE  =
        FULL_AND_PIECEWISE    PIECEWISE   PIECEWISE           =                   =
        FULL_DECODE_ONLY      PIECEWISE   PIECEWISE           =                   =

        split, no VLLM_COMPILE, several tokens a request
        FULL                  ValueError  PIECEWISE           FULL_AND_PIECEWISE  =
        FULL_AND_PIECEWISE    NONE        PIECEWISE           =                   =
        FULL_DECODE_ONLY      NONE        PIECEWISE           =                   =

        not split, no VLLM_COMPILE, several tokens a request
        FULL                  ValueError  NONE                FULL_DECODE_ONLY    =
        FULL_AND_PIECEWISE    NONE        NONE                =                   =
        FULL_DECODE_ONLY      NONE        NONE                =                   =

        split, VLLM_COMPILE, one token a request, no piecewise capture
        FULL                  ValueError  FULL_DECODE_ONLY    FULL_DECODE_ONLY    =
        FULL_AND_PIECEWISE    NONE        FULL_DECODE_ONLY    FULL_DECODE_ONLY    FULL_DECODE_ONLY
        FULL_DECODE_ONLY      NONE        =                   =                   =
        PIECEWISE             NONE        NONE                NONE                NONE
    """
    mode, support = parse(CUDAGraphMode, mode), parse(AttentionCGSupport, support)
    compilation_mode = parse(CompilationMode, compilation_mode)
    full, piecewise = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE
    split = attention_in_splitting_ops

    # A graph of mixed batches needs a backend that bears all of them.
    if mode.mixed_mode() is full and support < AttentionCGSupport.ALWAYS:
        if support is AttentionCGSupport.NEVER:
            raise ValueError(
                f"mode {mode} on an attention backend with graph support NEVER: "
                "ask for PIECEWISE, and compile with VLLM_COMPILE"
            )
        mode = CUDAGraphMode.FULL_AND_PIECEWISE if split else CUDAGraphMode.FULL_DECODE_ONLY

    # A graph of decode batches needs a backend that bears any graph: here only the compiler helps.
    if mode.decode_mode() is full and support is AttentionCGSupport.NEVER:
        cut_by_compiler = compilation_mode is CompilationMode.VLLM_COMPILE and split
        mode = piecewise if cut_by_compiler else CUDAGraphMode.NONE

    # Several tokens a request need more than single tokens.
    several_tokens = uniform_decode_query_len > 1
    if mode.decode_mode() is full and several_tokens and support < AttentionCGSupport.UNIFORM_BATCH:
        mode = piecewise if split else CUDAGraphMode.NONE

    # And pieces need something that cuts.
    return mode if piecewise_capture_available else without_piecewise(mode)
