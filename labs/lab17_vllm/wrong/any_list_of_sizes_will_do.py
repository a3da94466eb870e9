"""any-list-of-sizes-will-do: takes the first list whose name ends in cudagraph_capture_sizes."""


def read_startup(log):
    begun = re.search(r"Initializing a V1 LLM engine \(v([^)]+)\) with config: (.*)", log)
    if begun is None:
        raise ValueError("no line Initializing a V1 LLM engine")
    version, config = begun.groups()
    modes = re.findall(
        r"setting cudagraph_mode=([A-Z_]+)|Overriding to ([A-Z_]+)", log[begun.end() :]
    )
    mode = _found(r"'cudagraph_mode': <CUDAGraphMode\.(\w+)", config)
    for one, other in modes:
        mode = one or other
    sizes = re.search(r"cudagraph_capture_sizes': \[([\d, ]*)\]", config)[1]
    ladder = () if mode == "NONE" else tuple(sorted(map(int, re.findall(r"\d+", sizes))))
    return StartUp(version, _found(r"'mode': <CompilationMode\.(\w+)", config), mode, ladder)
