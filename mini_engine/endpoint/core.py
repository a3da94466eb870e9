"""One thread that drives the engine; many streams that an event loop reads."""

import asyncio
import queue
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

from mini_engine.endpoint.engines import Backend
from mini_engine.engine.batch import Request
from mini_engine.engine.engine import StepRecord
from mini_engine.engine.scheduler import Scheduler
from mini_engine.serving.replay import StepTaken

ERROR = "error"  # why a stream ends when the engine is at fault
# Names and buckets of metrics are those of vllm/v1/metrics/loggers.py, for its dashboards; buckets
# below 10 ms are ours, since small models are faster. Steps by mode and rung vLLM does not count.
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


class Stream(asyncio.Queue[tuple[list[int], str | None]]):
    """(tokens of a step, why they were the last or None), for one reader."""

    def __init__(self, request: Request) -> None:
        super().__init__()
        self.request, self.opened = request, time.perf_counter()
        self.last, self.sent = self.opened, 0  # when it got tokens, and how many so far


class Core(threading.Thread):
    """Made inside a running event loop; `start` begins it, and `stop` ends it. `on_fault` is called
    in the loop when the engine has failed."""

    def __init__(self, backend: Backend, on_fault: Callable[[], object] = lambda: None) -> None:
        super().__init__(name="engine", daemon=True)
        self.steps, self.metrics, self._on_fault = backend.steps, Metrics(), on_fault
        self.streams: dict[str, Stream] = {}  # that are open
        self.fault: BaseException | None = None
        self._inbox: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()

    # ---- in the event loop

    def open(self, request: Request) -> Stream:
        """Submit a request, which the scheduler's limits allow and whose id nobody has."""
        stream = self.streams[request.request_id] = Stream(request)
        self.metrics.prompt_tokens += len(request.prompt)
        self._inbox.put(partial(self.steps.submit, request))
        return stream

    def close(self, stream: Stream, why: str) -> None:
        """Its reader has all, or wants no more. `why`: how that is counted, if it had not ended."""
        del self.streams[stream.request.request_id]
        self._inbox.put(partial(self._cancel, stream.request.request_id, why))

    def stop(self) -> None:
        self._inbox.put(None)
        self.join()

    # ---- in the thread

    def run(self) -> None:
        try:
            while self._take():
                if step := self.steps.step():
                    self._deliver(step)
        except BaseException as error:
            self.fault = error
            self._loop.call_soon_threadsafe(self._fail)

    def _take(self) -> bool:
        """Do what the loop asks for, and wait while there is nothing to run; False at the end."""
        wait = not self.steps.scheduler.has_unfinished
        while wait or not self._inbox.empty():
            order, wait = self._inbox.get(), False
            if order is None:
                return False
            order()
        return True

    def _cancel(self, request_id: str, why: str) -> None:
        if self.steps.cancel(request_id):
            self.metrics.ended[why] += 1

    def _deliver(self, step: StepRecord | StepTaken) -> None:
        """Count the step, and hand on what it has added to each text."""
        now, puts, metrics = time.perf_counter(), list[Callable[[], None]](), self.metrics
        metrics.steps[step.descriptor.mode.name, step.descriptor.num_tokens] += 1
        metrics.preemptions += len(step.batch.preempted)
        for entry in step.batch.entries:
            state, stream = entry.state, self.streams.get(entry.request.request_id)
            if stream is None or len(state.output) == stream.sent:
                continue  # nobody reads it any more, or its prompt has not ended yet
            (metrics.itl if stream.sent else metrics.ttft).observe(now - stream.last)
            tokens, stream.last = state.output[stream.sent :], now
            stream.sent += len(tokens)
            metrics.generated_tokens += len(tokens)
            if state.finish_reason:
                metrics.ended[state.finish_reason] += 1
                metrics.e2e.observe(now - stream.opened)
            puts.append(partial(stream.put_nowait, (tokens, state.finish_reason)))
        self._loop.call_soon_threadsafe(lambda: [put() for put in puts])

    def _fail(self) -> None:
        for stream in self.streams.values():
            stream.put_nowait(([], ERROR))
        self._on_fault()
