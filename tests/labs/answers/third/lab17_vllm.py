"""A third right way: switches as a chain of ifs, finditer, percentiles by hand."""

import statistics


def serve_command(setup, variant):
    words = f"vllm serve {setup.model} --no-enable-prefix-caching".split()
    for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "port"):
        words += ["--" + name.replace("_", "-"), str(getattr(setup, name))]
    if variant == "eager":
        return [*words, "--enforce-eager"]
    if variant == "compiled":
        return [*words, "--compilation-config.cudagraph_mode=none"]
    if variant == "graphs":
        return words
    raise ValueError


def read_startup(log):
    _, begun, rest = log.partition("Initializing a V1 LLM engine (v")
    if not begun:
        raise ValueError("too short a log")
    line, _, later = rest.partition("\n")
    keys = dict(re.findall(r"[ {]'(\w+)': (<\w+\.\w+|\[[\d, ]*\])", line))
    modes = [keys["cudagraph_mode"].rpartition(".")[2]]
    modes += re.findall(r"(?<=setting cudagraph_mode=)[A-Z_]+|(?<=Overriding to )[A-Z_]+", later)
    sizes = [int(size) for size in keys["cudagraph_capture_sizes"].strip("[]").split(",") if size]
    sizes.sort()
    ladder = tuple(sizes) if modes[-1] != "NONE" else ()
    return StartUp(line.partition(")")[0], keys["mode"].split(".")[1], modes[-1], ladder)


def captured_graphs(log):
    found = {}
    pattern = r"graphs \((?:[\w -]+, )*(?P<mode>[A-Z]+)\):.*?(?P<done>\d+)/(?P<total>\d+)"
    for state in re.finditer(pattern, log.replace("\r", "\n")):
        found[state["mode"]] = int(state["total"]) if state["done"] == state["total"] else None
    if None in found.values():
        raise ValueError(f"broken off: {found}")
    return found


def expected_graphs(capture_sizes, cudagraph_mode, max_num_seqs):
    few = [size for size in capture_sizes if not size > max_num_seqs]
    pieces = len(capture_sizes) * ("PIECEWISE" in cudagraph_mode)
    full = len(capture_sizes if cudagraph_mode == "FULL" else few) * ("FULL" in cudagraph_mode)
    return dict(item for item in (("FULL", full), ("PIECEWISE", pieces)) if item[1] > 0)


def latency(result):
    try:
        names = ("output_lens", "itls", "latencies", "ttfts")
        rows = list(zip(*map(result.__getitem__, names), strict=True))
    except KeyError as error:
        raise ValueError(error.args) from error
    rows = [row for row in rows if row[0] > 0]
    gaps = sorted(gap for row in rows for gap in row[1])
    if len(gaps) < 1:
        raise ValueError(len(rows))
    decoding = [row for row in rows if row[0] >= 2]
    tpots = [(whole - first) / (tokens - 1) for tokens, _, whole, first in decoding]
    below, part = divmod(0.99 * (len(gaps) - 1), 1)
    low, high = gaps[int(below)], gaps[min(int(below) + 1, len(gaps) - 1)]
    return Latency(
        len(gaps),
        1e3 * statistics.mean(gaps),
        1e3 * statistics.median(gaps),
        1e3 * (low + part * (high - low)),
        1e3 * statistics.mean(tpots),
        sum(row[0] - 1 for row in decoding) / len(gaps),
    )
