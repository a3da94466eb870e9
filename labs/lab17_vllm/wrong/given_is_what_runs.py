"""given-is-what-runs: takes the first of each key in the log, which may be what was asked for."""


def read_startup(log):
    begun = re.search(r"Initializing a V1 LLM engine \(v([^)]+)\) with config: (.*)", log)
    if begun is None:
        raise ValueError("no line Initializing a V1 LLM engine")
    cudagraph_mode = _found(r"'cudagraph_mode': <CUDAGraphMode\.(\w+)", log)
    sizes = _found(r"'cudagraph_capture_sizes': \[([\d, ]*)\]", log)
    changed = r"setting cudagraph_mode=([A-Z_]+)|Overriding to ([A-Z_]+)"
    for one, other in re.findall(changed, log[begun.end() :]):
        cudagraph_mode = one or other
    ladder = sorted(int(size) for size in re.findall(r"\d+", sizes))
    mode = _found(r"'mode': <CompilationMode\.(\w+)", log)
    ladder = () if cudagraph_mode == "NONE" else tuple(ladder)
    return StartUp(begun[1], mode, cudagraph_mode, ladder)
