"""Claims about the predicted engine: it is `serve`'s server, on a clock of the wall."""

from __future__ import annotations

from typing import Any

import pytest

from mini_engine.endpoint.core import Core
from mini_engine.engine.batch import Request
from mini_engine.server import Server
from mini_engine.serving import replay as serving
from mini_engine.serving.replay import Replica, replay
from mini_engine.serving.report import Served
from mini_engine.serving.request_trace import synthetic_trace
from tests.support.endpoint_helpers import flat_backend, run, served


class Wall:
    """A clock that a test turns: sleeping takes too long, and so does everything else."""

    def __init__(self, late_s: float = 0.0) -> None:
        self.now_s, self.late_s = 0.0, late_s

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds + self.late_s * (seconds > 0)


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    wall = Wall()
    monkeypatch.setattr(serving, "time", wall)
    return wall


def test_it_serves_a_trace_as_serve_does_to_the_microsecond(wall: Wall) -> None:
    server = Server("qwen3-8b", "h100")
    sized, trace = server.sized("FULL_AND_PIECEWISE"), list(synthetic_trace(40, 3))
    expected: list[Served] = []
    replay(trace, server.costs, sized.limits, sized.dispatcher, on_served=expected.append)
    found: list[Served] = []
    replica = Replica(server.costs, sized.limits, sized.dispatcher, on_served=found.append)
    predicted, left = serving.RealTime(replica), list(enumerate(trace))
    while left or predicted.scheduler.has_unfinished:
        if not predicted.scheduler.has_unfinished:
            wall.now_s = max(wall.now_s, left[0][1].arrival_us / 1e6)
        while left and left[0][1].arrival_us <= wall.now_s * 1e6 + 1e-3:
            number, r = left.pop(0)
            prompt = range(r.prompt_tokens)
            predicted.submit(Request(str(number), prompt, r.output_tokens, r.arrival_us))
        predicted.step()
    assert len(found) == 40
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.number == theirs.number
        assert mine.first_token_us == pytest.approx(theirs.first_token_us, abs=1)
        assert mine.finished_us == pytest.approx(theirs.finished_us, abs=1)


def test_a_sleep_that_is_too_long_is_caught_up_in_the_next_step(wall: Wall) -> None:
    backend, times = flat_backend(1000.0), list[float]()
    wall.late_s = 0.0003
    backend.steps.submit(Request("0", [1], 100))
    while backend.steps.step():
        times.append(wall.now_s)
    assert len(times) == 100
    assert times[-1] == pytest.approx(0.1 + 0.0003)  # it is late once, and not a hundred times


def test_a_request_that_comes_later_waits_for_no_time_that_has_passed(wall: Wall) -> None:
    backend = flat_backend(1000.0)
    for number, at_s in enumerate((0.0, 5.0)):
        wall.now_s = max(wall.now_s, at_s)
        backend.steps.submit(Request(str(number), [1], 1))
        backend.steps.step()
        assert wall.now_s == pytest.approx(at_s + 0.001)
        assert backend.steps.step() is None


def test_metrics_have_vllms_names_and_count_what_happened() -> None:

    async def main() -> None:
        async with served(flat_backend()) as server:
            for _ in range(2):
                await server.ask(prompt=[5] * 40, max_tokens=10)
            core: Core = server.endpoint.core
            async with server.session.get("/metrics") as reply:
                text, kind = await reply.text(), reply.content_type
        values: dict[str, Any] = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                values[name.replace('{engine="0",model_name="flat"', "{")] = float(value)
        assert kind == "text/plain"
        for name, value in {
            "vllm:num_requests_running{}": 0, "vllm:num_requests_waiting{}": 0,
            "vllm:kv_cache_usage_perc{}": 0, "vllm:num_preemptions_total{}": 0,
            "vllm:prompt_tokens_total{}": 80, "vllm:generation_tokens_total{}": 20,
            "vllm:prefix_cache_queries_total{}": 80, "vllm:prefix_cache_hits_total{}": 32,
            'vllm:request_success_total{,finished_reason="length"}': 2,
            "vllm:time_to_first_token_seconds_count{}": 2,
            "vllm:inter_token_latency_seconds_count{}": 18,
            'vllm:inter_token_latency_seconds_bucket{,le="+Inf"}': 18,
            "vllm:e2e_request_latency_seconds_count{}": 2,
            'mini_engine:steps_total{,mode="FULL",rung="1"}': 18,
            'mini_engine:steps_total{,mode="PIECEWISE",rung="8"}': 1,
        }.items():  # fmt: skip
            assert values[name] == value, name
        ttft = [v for k, v in values.items() if k.startswith("vllm:time_to_first_token_seconds_b")]
        assert ttft == sorted(ttft)
        assert core.metrics.ttft.sum_s == values["vllm:time_to_first_token_seconds_sum{}"] > 0

    run(main())
