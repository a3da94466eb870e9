"""What the endpoint counts, in Prometheus' text format, under the names that vLLM gives it.

Names and buckets are those of vllm/v1/metrics/loggers.py, for its dashboards; the buckets below
10 ms are ours, since small models are faster. Steps by mode and rung vLLM does not count.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

from mini_engine.engine.scheduler import Scheduler

TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20,
          40, 80, 160, 640, 2560)  # fmt: skip
ITL_S = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
         0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)  # fmt: skip
E2E_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)


class Histogram:
    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self.bounds_s, self.counts, self.sum_s = bounds_s, [0] * (len(bounds_s) + 1), 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds_s, seconds)] += 1
        self.sum_s += seconds

    def samples(self) -> dict[str, float]:
        counts, bounds = self.counts, (*self.bounds_s, "+Inf")
        buckets = {f'_bucket,le="{b}"': sum(counts[: i + 1]) for i, b in enumerate(bounds)}
        return {**buckets, "_sum": self.sum_s, "_count": sum(counts)}


class Metrics:
    def __init__(self) -> None:
        self.ttft, self.itl, self.e2e = map(Histogram, (TTFT_S, ITL_S, E2E_S))
        self.ended: Counter[str] = Counter()  # requests, by why they ended
        self.steps: Counter[tuple[str, int]] = Counter()  # by mode and rung
        self.prompt_tokens = self.generated_tokens = self.preemptions = 0

    def text(self, model: str, scheduler: Scheduler, open_streams: int) -> str:
        """`open_streams`: requests that are running, or waiting for that."""
        running, hits, pool = len(scheduler.running), scheduler.first_hits, scheduler.pool
        steps = {f',mode="{m}",rung="{rung}"': n for (m, rung), n in sorted(self.steps.items())}
        families: dict[str, tuple[str, Mapping[str, float]]] = {
            "vllm:num_requests_running": ("gauge", {"": running}),
            "vllm:num_requests_waiting": ("gauge", {"": max(0, open_streams - running)}),
            "vllm:kv_cache_usage_perc": ("gauge", {"": 1 - pool.num_free / (pool.num_blocks - 1)}),
            "vllm:prefix_cache_queries_total": ("counter", {"": hits.asked}),
            "vllm:prefix_cache_hits_total": ("counter", {"": hits.hit}),
            "vllm:num_preemptions_total": ("counter", {"": self.preemptions}),
            "vllm:prompt_tokens_total": ("counter", {"": self.prompt_tokens}),
            "vllm:generation_tokens_total": ("counter", {"": self.generated_tokens}),
            "vllm:request_success_total": ("counter", {
                f',finished_reason="{why}"': n for why, n in sorted(self.ended.items())}),
            "mini_engine:steps_total": ("counter", steps),
            "vllm:time_to_first_token_seconds": ("histogram", self.ttft.samples()),
            "vllm:inter_token_latency_seconds": ("histogram", self.itl.samples()),
            "vllm:e2e_request_latency_seconds": ("histogram", self.e2e.samples()),
        }  # fmt: skip
        name = model.replace("\\", "\\\\").replace('"', '\\"')
        lines = []
        for family, (kind, samples) in families.items():
            lines.append(f"# TYPE {family} {kind}")
            for sample, value in samples.items():
                end, _, label = sample.partition(",")
                labels = f'engine="0",model_name="{name}"{label and "," + label}'
                lines.append(f"{family}{end}{{{labels}}} {value}")
        return "\n".join([*lines, ""])
