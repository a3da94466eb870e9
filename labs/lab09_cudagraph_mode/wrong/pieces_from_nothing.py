"""pieces-from-nothing: keeps the pieces of a mode though nothing cuts the forward pass."""


def resolve_mode(
    mode,
    support,
    *,
    attention_in_splitting_ops,
    compilation_mode,
    uniform_decode_query_len=1,
    piecewise_capture_available=True,
):
    mode, support = parse(CUDAGraphMode, mode), parse(AttentionCGSupport, support)
    split, full = attention_in_splitting_ops, CUDAGraphMode.FULL
    pieces = CUDAGraphMode.PIECEWISE if split else CUDAGraphMode.NONE
    if mode.mixed_mode() is full and support < AttentionCGSupport.ALWAYS:
        if support is AttentionCGSupport.NEVER:
            raise ValueError("ask for PIECEWISE")
        mode = CUDAGraphMode.FULL_AND_PIECEWISE if split else CUDAGraphMode.FULL_DECODE_ONLY
    if mode.decode_mode() is full and support is AttentionCGSupport.NEVER:
        cut = parse(CompilationMode, compilation_mode) is CompilationMode.VLLM_COMPILE
        mode = pieces if cut else CUDAGraphMode.NONE
    several = uniform_decode_query_len > 1
    if mode.decode_mode() is full and several and support < AttentionCGSupport.UNIFORM_BATCH:
        mode = pieces
    return mode
