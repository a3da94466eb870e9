"""failed-requests-count: takes every gap in the file, also those of streams that broke off."""


def latency(result):
    if "itls" not in result:
        raise ValueError("no itls: --save-detailed")
    gaps = [1e3 * gap for request in result["itls"] for gap in request]
    if not gaps:
        raise ValueError("no gaps")
    tokens = sum(length - 1 for length in result["output_lens"] if length)
    tpots = [
        1e3 * (whole - ttft) / (length - 1)
        for whole, ttft, length in zip(result["latencies"], result["ttfts"], result["output_lens"])
        if length > 1
    ]
    median, p99 = np.percentile(gaps, [50, 99])
    means = float(np.mean(gaps)), float(median), float(p99), float(np.mean(tpots))
    return Latency(len(gaps), *means, tokens / len(gaps))
