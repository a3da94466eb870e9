"""asked-is-what-runs: believes the config line, whatever the log says after it."""


def read_startup(log):
    begun = re.search(r"Initializing a V1 LLM engine \(v([^)]+)\) with config: (.*)", log)
    if begun is None:
        raise ValueError("no line Initializing a V1 LLM engine")
    version, config = begun.groups()
    sizes = _found(r"'cudagraph_capture_sizes': \[([\d, ]*)\]", config)
    return StartUp(
        version,
        _found(r"'mode': <CompilationMode\.(\w+)", config),
        _found(r"'cudagraph_mode': <CUDAGraphMode\.(\w+)", config),
        tuple(sorted(int(size) for size in re.findall(r"\d+", sizes))),
    )
