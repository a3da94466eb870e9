"""Another right way: a table of switches, lines one by one, split instead of patterns, numpy."""

import ast


def serve_command(setup, variant):
    try:
        last = {"graphs": (), "compiled": ("-cc", NO_GRAPHS), "eager": ("--enforce-eager",)}[
            variant
        ]
    except KeyError:
        raise ValueError("there are three ways to serve") from None
    limits = {
        "no-enable-prefix-caching": None,
        "port": setup.port,
        "host": "127.0.0.1",
        "max-model-len": setup.max_model_len,
        "max-num-batched-tokens": setup.max_num_batched_tokens,
        "max-num-seqs": setup.max_num_seqs,
    }
    words = ["vllm", "serve", setup.model]
    for name, value in limits.items():
        words.append(f"--{name}")
        if value is not None:
            words.append(f"{value}")
    return words + list(last)


NO_GRAPHS = '{"cudagraph_mode": "NONE"}'


def read_startup(log):
    found = None
    for line in log.splitlines():
        if "Initializing a V1 LLM engine (v" in line:
            version = line.split("engine (v", 1)[1].split(")", 1)[0]
            config = line.split("compilation_config=", 1)[1]
            sizes = ast.literal_eval(
                config.split(" 'cudagraph_capture_sizes': ")[1].split("]")[0] + "]"
            )
            compiled = config.split("'mode': <CompilationMode.")[1].partition(":")[0]
            graphs = config.split("'cudagraph_mode': <CUDAGraphMode.")[1].partition(":")[0]
            found = [version, compiled, graphs, sizes]
        elif found:
            for phrase in ("setting cudagraph_mode=", "Overriding to "):
                if phrase in line:
                    found[2] = re.match("[A-Z_]*", line.split(phrase)[-1])[0]
    if found is None:
        raise ValueError("not a start-up log")
    if found[2] == "NONE":
        found[3] = []
    found[3] = tuple(sorted(found[3]))
    return StartUp(*found)


def captured_graphs(log):
    states = {}
    for state in re.split(r"[\r\n]", log):
        words, colon, rest = state.partition("Capturing CUDA graphs (")[2].partition("):")
        if colon:
            done, total = re.search(r"(\d+)/(\d+)", rest).groups()
            states[words.split(", ")[-1]] = (int(done), int(total))
    if any(done != total for done, total in states.values()):
        raise ValueError(states)
    return {mode: done for mode, (done, _) in states.items()}


def expected_graphs(capture_sizes, cudagraph_mode, max_num_seqs):
    found = {}
    for size in capture_sizes:
        if cudagraph_mode.endswith("PIECEWISE"):
            found["PIECEWISE"] = found.get("PIECEWISE", 0) + 1
        decodes_only = cudagraph_mode in ("FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
        if cudagraph_mode == "FULL" or (decodes_only and size <= max_num_seqs):
            found["FULL"] = found.get("FULL", 0) + 1
    return found


def latency(result):
    lists = [result.get(name) for name in ("itls", "ttfts", "latencies", "output_lens")]
    if None in lists or len({len(one) for one in lists}) != 1:
        raise ValueError("incomplete")
    lens = np.array(lists[3])
    gaps = np.array([gap for i in np.flatnonzero(lens) for gap in lists[0][i]]) * 1000
    if gaps.size == 0:
        raise ValueError("nothing between tokens")
    several = lens > 1
    decode_s = np.array(lists[2])[several] - np.array(lists[1])[several]
    return Latency(
        gaps=int(gaps.size),
        mean_itl_ms=gaps.mean().item(),
        median_itl_ms=np.median(gaps).item(),
        p99_itl_ms=np.percentile(gaps, 99).item(),
        mean_tpot_ms=1000 * (decode_s / (lens[several] - 1)).mean().item(),
        tokens_per_gap=(lens[several] - 1).sum().item() / gaps.size,
    )
