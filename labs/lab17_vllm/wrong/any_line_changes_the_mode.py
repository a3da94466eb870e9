"""any-line-changes-the-mode: looks for changes of the mode in the whole log."""


def read_startup(log):
    begun = re.search(r"Initializing a V1 LLM engine \(v([^)]+)\) with config: (.*)", log)
    if begun is None:
        raise ValueError("no line Initializing a V1 LLM engine")
    version, config = begun.groups()
    cudagraph_mode = _found(r"'cudagraph_mode': <CUDAGraphMode\.(\w+)", config)
    sizes = _found(r"'cudagraph_capture_sizes': \[([\d, ]*)\]", config)
    changed = r"setting cudagraph_mode=([A-Z_]+)|Overriding to ([A-Z_]+)"
    for one, other in re.findall(changed, log):
        cudagraph_mode = one or other
    ladder = sorted(int(size) for size in re.findall(r"\d+", sizes))
    mode = _found(r"'mode': <CompilationMode\.(\w+)", config)
    return StartUp(version, mode, cudagraph_mode, () if cudagraph_mode == "NONE" else tuple(ladder))
