"""itl-is-tpot: averages each request first, and takes percentiles of those averages."""


def latency(result):
    if "itls" not in result:
        raise ValueError("no itls: --save-detailed")
    means, gaps, tokens = [], 0, 0
    for times, ttft, whole, length in zip(
        result["itls"], result["ttfts"], result["latencies"], result["output_lens"]
    ):
        if length > 1:
            means.append(1e3 * (whole - ttft) / (length - 1))
            gaps, tokens = gaps + len(times), tokens + length - 1
    if not means:
        raise ValueError("no gaps")
    median, p99 = np.percentile(means, [50, 99])
    mean = float(np.mean(means))
    return Latency(gaps, mean, float(median), float(p99), mean, tokens / gaps)
