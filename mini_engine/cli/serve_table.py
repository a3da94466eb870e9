"""What `serve` found, as a table for people.

In: the result of `serve`, as `--json` prints it. Out: the rows of its table, and that of rungs.
"""

from __future__ import annotations

from typing import Any

from rich.table import Table

from mini_engine.cli import options


def lines(r: dict[str, Any]) -> list[tuple[str, str]]:
    def ms(key: str) -> str:
        return "–" if r[key] is None else f"{r[key] / 1000:,.2f} ms"

    again = r["recomputed_tokens"] - r["recompute_tokens_saved"]
    lines = [
        ("requests served", f"{r['requests']:,}"),
        ("refused / cut at the context's end", f"{r['refused']:,} / {r['truncated']:,}"),
        ("TTFT p50 / p99", f"{ms('ttft_p50_us')} / {ms('ttft_p99_us')}"),
        ("ITL p50 / p99", f"{ms('itl_p50_us')} / {ms('itl_p99_us')}"),
        ("  p50, with its interval", _between(r["itl_p50_interval"])),
        ("throughput", f"{r['tokens_per_s']:,.0f} tokens/s, {r['requests_per_s']:.2f} requests/s"),
        ("steps by run-time mode", _shares(r["steps_by_mode"])),
        ("padding waste", f"{r['padding_waste']:.1%} of {r['rows'] + r['padded_rows']:,} rows"),
        ("preemptions", f"{r['preemptions']:,} ({again:,} tokens computed again)"),
        *_swapping(r),
        *_sharing(r),
        ("KV blocks, peak of all", f"{r['kv_blocks_peak']:,} of {r['kv_blocks']:,}"),
        ("graphs", f"{r['graphs']:,}, {r['graph_memory_bytes'] / 1e6:,.0f} MB"),
        ("capturing them", ms("capture_us")),
    ]
    if best := r["optimal_ladder"]:
        saved = f"{best['saved_rows']:,} padded rows, {best['saved_us'] / 1e6:,.2f} s"
        lines.append((f"the optimal ladder of {len(best['capture_sizes'])} rungs saves", saved))
        lines.append(("  that is of the busy time", f"{best['saved_share']:.2%}"))
        lines.append(("  its rungs", _short(best["capture_sizes"])))
    return lines


def _swapping(r: dict[str, Any]) -> list[tuple[str, str]]:
    """What went over the link, and how long steps waited for it."""
    if r["preemption"] == "recompute":
        return []
    copied = f"{r['swapped_bytes'] / 1e9:,.2f} GB in {r['swap_us'] / 1e3:,.1f} ms"
    return [
        (f"  of these swapped ({r['preemption']})", f"{r['swaps']:,}, {copied}"),
        ("  saved against computing again", f"{r['swap_saved_us'] / 1e3:,.1f} ms"),
    ]


def _sharing(r: dict[str, Any]) -> list[tuple[str, str]]:
    """What the prefix cache found."""
    if not r["prefix_caching"]:
        return []
    share = f"{r['share']:.0%} of them, {r['shared_prefix']:,} tokens" if r["share"] else "none"
    saved = f"{r['prefill_tokens_saved']:,} of {r['prompt_tokens']:,} prompt tokens"
    return [
        ("prompts alike, as assumed", share),
        ("prefix cache: hit rate", f"{r['prefix_hit_rate']:.1%}"),
        ("  prefill saved", saved),
    ]


def _between(interval: dict[str, float] | None) -> str:
    return options.ms(interval) if interval else "–"


def rungs(r: dict[str, Any]) -> Table:
    """The ten rungs that most steps ran at."""
    counts = [
        (steps, mode, rung)
        for mode, by_rung in r["steps_by_rung"].items()
        if mode != "NONE"  # eager steps have no rung
        for rung, steps in by_rung.items()
    ]
    table = Table("most steps ran at", "rung", "steps", "share")
    for steps, mode, rung in sorted(counts, reverse=True)[:10]:
        table.add_row(mode, str(rung), f"{steps:,}", f"{steps / r['steps']:.1%}")
    return table


def _shares(counts: dict[str, int]) -> str:
    total = sum(counts.values()) or 1
    return ", ".join(f"{mode} {count / total:.1%}" for mode, count in counts.items() if count)


def _short(sizes: list[int]) -> str:
    words = [str(size) for size in sizes]
    return ", ".join(words if len(words) <= 14 else [*words[:7], "…", *words[-6:]])
