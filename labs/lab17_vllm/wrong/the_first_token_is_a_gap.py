"""the-first-token-is-a-gap: counts the wait for the first token, prompt and all, as one more ITL."""


def latency(result):
    if "itls" not in result:
        raise ValueError("no itls: --save-detailed")
    gaps, tpots, tokens, count = [], [], 0, 0
    for times, ttft, whole, length in zip(
        result["itls"], result["ttfts"], result["latencies"], result["output_lens"]
    ):
        if length:
            gaps += [1e3 * ttft, *(1e3 * gap for gap in times)]
            count += len(times)
        if length > 1:
            tpots.append(1e3 * whole / length)
            tokens += length - 1
    if not count:
        raise ValueError("no gaps")
    median, p99 = np.percentile(gaps, [50, 99])
    means = float(np.mean(gaps)), float(median), float(p99), float(np.mean(tpots))
    return Latency(count, *means, tokens / count)
