"""drafts-are-one-token: a decoding request has one token, so every backend with graphs bears it."""


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
    if mode.mixed_mode() is full and support < AttentionCGSupport.ALWAYS:
        if support is AttentionCGSupport.NEVER:
            raise ValueError("ask for PIECEWISE")
        mode = CUDAGraphMode.FULL_AND_PIECEWISE if split else CUDAGraphMode.FULL_DECODE_ONLY
    if mode.decode_mode() is full and support is AttentionCGSupport.NEVER:
        cut = split and parse(CompilationMode, compilation_mode) is CompilationMode.VLLM_COMPILE
        mode = CUDAGraphMode.PIECEWISE if cut else CUDAGraphMode.NONE
    return mode if piecewise_capture_available else mode.without_piecewise()
