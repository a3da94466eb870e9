"""the-first-gap-is-warm-up: leaves the first gap of each request out of its TPOT."""


def latency(result):
    if "itls" not in result:
        raise ValueError("no itls: --save-detailed")
    gaps_ms, tpots, tokens = [], [], 0
    for gaps, ttft, whole, length in zip(
        result["itls"], result["ttfts"], result["latencies"], result["output_lens"], strict=True
    ):
        if length:
            gaps_ms += [1e3 * gap for gap in gaps]
            tokens += length - 1
        if length > 2:
            tpots.append(1e3 * (whole - ttft - gaps[0]) / (length - 2))
        elif length > 1:
            tpots.append(1e3 * (whole - ttft))
    if not gaps_ms:
        raise ValueError("no gaps")
    median, p99 = np.percentile(gaps_ms, [50, 99])
    means = float(np.mean(gaps_ms)), float(median), float(p99), float(np.mean(tpots))
    return Latency(len(gaps_ms), *means, tokens / len(gaps_ms))
