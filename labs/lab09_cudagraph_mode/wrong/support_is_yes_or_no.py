"""support-is-yes-or-no: a backend that bears any graph at all bears every graph."""


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
    if mode.decode_mode() is CUDAGraphMode.FULL and support is AttentionCGSupport.NEVER:
        if mode is CUDAGraphMode.FULL:
            raise ValueError("ask for PIECEWISE")
        cut = parse(CompilationMode, compilation_mode) is CompilationMode.VLLM_COMPILE
        cut = cut and attention_in_splitting_ops
        mode = CUDAGraphMode.PIECEWISE if cut else CUDAGraphMode.NONE
    return mode if piecewise_capture_available else mode.without_piecewise()
