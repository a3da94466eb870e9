"""Several simulated servers behind a router: pools, cold starts, what it costs, who was content.

Every replica is the server of `serve`. With a **prefill pool** a request gets its first token
there; then its K and V cross the link of that replica, one request after another, to the decode
pool. A replica that the **autoscaler** starts is paid for at once and serves after its cold start:
booting, reading the weights, capturing its graphs. One that it stops serves those that it has."""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count
from typing import NamedTuple

from mini_engine.engine.prefix_cache import block_key
from mini_engine.server import Server
from mini_engine.serving.replay import Replica, prompt_ids
from mini_engine.serving.report import LogHistogram, Served
from mini_engine.serving.request_trace import TraceRequest


class Arrival(NamedTuple):
    number: int  # of the request in the trace
    at_us: float
    request: TraceRequest
    first_token_us: float | None = None  # when another pool has computed the prompt


# It knows what a gateway can know: what it has sent and seen come back, the lengths of prompt and
# answer, and for `prefix` the keys of the blocks in each cache, as engines publish them.
Router = Callable[[Sequence[Replica], Arrival], Replica]


def outstanding(replica: Replica, arrival: Arrival) -> int:
    """Tokens that the replica has promised and not finished, at the time of the arrival."""
    replica.advance_to(arrival.at_us)
    return replica.outstanding


def round_robin() -> Router:
    turns = count()
    return lambda replicas, _: replicas[next(turns) % len(replicas)]


def least(replicas: Sequence[Replica], arrival: Arrival) -> Replica:
    return min(replicas, key=lambda one: outstanding(one, arrival))


def power_of_two() -> Router:
    """The better of two drawn at random: nearly as good as the best (Mitzenmacher, TPDS 2001)."""
    rng = random.Random(0)
    return lambda replicas, arrival: least(rng.sample(replicas, min(2, len(replicas))), arrival)


def prefix_aware(replicas: Sequence[Replica], arrival: Arrival) -> Replica:
    """Where least is to do beside the tokens that the replica's cache holds."""
    work = [outstanding(one, arrival) for one in replicas]
    caches = {i: c for i, one in enumerate(replicas) if (c := one.scheduler.prefix_cache)}
    key, ids = b"", prompt_ids(arrival.number, arrival.request)
    size = replicas[0].limits.block_size
    for end in range(size, len(ids), size):
        key = block_key(key, ids[end - size : end])
        caches = {i: c for i, c in caches.items() if c.blocks.find(key) is not None}
        if not caches:
            break
        for i in caches:
            work[i] -= size
    return replicas[work.index(min(work))]


ROUTERS: dict[str, Callable[[], Router]] = {
    "round-robin": round_robin, "least": lambda: least, "two": power_of_two,
    "prefix": lambda: prefix_aware,
}  # fmt: skip


server_of = cache(Server)  # its costs remember every step that was asked for
sized_as = cache(Server.sized)  # its graphs are priced once for all replicas of all fleets


@dataclass(frozen=True)
class Design:
    """A fleet on paper. Times in µs, bandwidths in GB/s, prices in money an hour."""

    model: str
    cards: tuple[str, ...]  # of each replica; those of a prefill pool first
    engine: str | None = None
    host: str | None = None
    mode: str = "FULL_AND_PIECEWISE"
    router: str = "round-robin"
    prefill: int = 0  # replicas that compute prompts only
    link_gb_s: float = 50.0  # between the pools: 400 Gb/s
    prefix_caching: bool = False
    scale_at: int = 0  # outstanding requests a replica that the autoscaler aims at; 0: all serve
    boot_us: float = 30e6
    load_gb_s: float = 2.0  # at which weights are read
    slo_us: tuple[float, float] = (math.inf, math.inf)  # TTFT, and mean ITL of a request
    prices: tuple[tuple[str, float], ...] = ()  # of a card; 1 for one that is not named
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.router not in ROUTERS:
            raise ValueError(f"router {self.router!r}: expected one of {', '.join(ROUTERS)}")
        if not 0 <= self.prefill < len(self.cards):
            words = f"{self.prefill} of {len(self.cards)} replicas compute prompts"
            raise ValueError(f"{words}: one at least has to be left for the answers")
        if self.prefill and self.scale_at:
            raise ValueError("an autoscaler and a prefill pool: choose one of the two")

    def server(self, card: str) -> Server:
        return server_of(
            self.model, card, host=self.host, engine=self.engine, max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
        )  # fmt: skip


@dataclass
class FleetReport:
    requests: int = 0  # served to the end
    refused: int = 0  # no replica's context has room
    ttft_p50_us: float | None = None
    ttft_p99_us: float | None = None
    itl_p50_us: float | None = None
    itl_p99_us: float | None = None
    tokens_per_s: float = 0.0
    content_share: float = 0.0  # of all requests, refused ones included, that met the SLO
    goodput_per_s: float = 0.0  # requests a second that met it
    cost_per_hour: float = 0.0
    most_replicas: int = 0
    cold_starts: int = 0
    cold_start_us: float = 0.0  # the longest
    prefix_hit_rate: float | None = None
    served_by: list[int] = field(default_factory=list)  # requests of each replica


@dataclass
class Member:
    """A replica in its pool: from when it is paid for, from when it serves, until when."""

    card: str
    replica: Replica
    paid_from_us: float
    ready_us: float
    leaves_us: float = math.inf  # nobody new from then on


class Pool:
    """Replicas of the same work, behind one router."""

    def __init__(
        self, design: Design, cards: tuple[str, ...], on_served: Callable[[Replica, Served], None],
        report: FleetReport,
    ) -> None:  # fmt: skip
        self.design, self.cards, self.members = design, list(cards), list[Member]()
        self.on_served, self.route, self.report = on_served, ROUTERS[design.router](), report
        self._checked_us: float | None = None  # when the autoscaler looked last
        for _ in cards[:1] if design.scale_at else cards:
            self._start(-math.inf)

    def serve(self, arrivals: Iterable[Arrival]) -> None:
        for arrival in arrivals:
            at_us, request = arrival.at_us, arrival.request
            if self.design.scale_at:
                self._scale(at_us)
            able = [m.replica for m in self.members if m.ready_us <= at_us < m.leaves_us
                    and request.prompt_tokens < m.replica.context]  # fmt: skip
            if not able:
                self.report.refused += 1
                continue
            replica = self.route(able, arrival)
            replica.advance_to(at_us)
            first_us = arrival.first_token_us
            replica.submit(arrival.number, request, at_us=at_us, first_token_us=first_us)
        for member in self.members:
            member.replica.advance_to(math.inf)

    def _start(self, now_us: float) -> None:
        """One replica more, of the next card; a cold start, unless the trace has not begun."""
        design, card = self.design, self.cards.pop(0)
        server = design.server(card)
        sized = sized_as(server, design.mode, prefix_caching=design.prefix_caching)
        replica = Replica(server.costs, sized.limits, sized.dispatcher)
        replica.on_served = partial(self.on_served, replica)
        cold_us = 0.0
        if now_us > -math.inf:
            cold_us = design.boot_us + server.stored.held / design.load_gb_s / 1e3
            cold_us += sized.graph_costs.capture_us
            self.report.cold_starts += 1
            self.report.cold_start_us = max(self.report.cold_start_us, cold_us)
        self.members.append(Member(card, replica, now_us, now_us + cold_us))

    def _scale(self, now_us: float, every_us: float = 10e6) -> None:
        """Every ten seconds: as many replicas as have `scale_at` requests each."""
        if self._checked_us is None:
            self._checked_us = now_us
        while self._checked_us + every_us <= now_us:
            self._checked_us += every_us
            at_us = self._checked_us
            staying = [m for m in self.members if m.leaves_us == math.inf]
            for member in staying:
                member.replica.advance_to(at_us)
            load = sum(m.replica.unfinished for m in staying)
            wanted = max(1, math.ceil(load / self.design.scale_at))
            for _ in range(min(wanted - len(staying), len(self.cards))):
                self._start(at_us)
            ready = [m for m in staying if m.ready_us <= at_us]
            if wanted < len(staying) and len(ready) > 1:
                leaving = min(ready, key=lambda m: (m.replica.unfinished, m.replica.outstanding))
                leaving.leaves_us = at_us
                self.cards.append(leaving.card)


def run(
    design: Design, requests: Iterable[TraceRequest],
    on_served: Callable[[Served], object] = lambda _: None,
) -> FleetReport:  # fmt: skip
    """Serve a trace, in order of arrival. Raises ValueError for a name that is not known, and for a
    model that does not fit."""
    report, ttft, itl = FleetReport(), LogHistogram(), LogHistogram()
    trace, content, tokens, last_us = list(requests), 0, 0, 0.0
    first_us = trace[0].arrival_us if trace else 0.0

    def book(replica: Replica, served: Served) -> None:
        nonlocal content, tokens, last_us
        request = trace[served.number]
        new = min(request.output_tokens, replica.context - request.prompt_tokens)
        ttft_us = served.first_token_us - served.arrival_us
        mean_us = (served.finished_us - served.first_token_us) / max(1, new - 1)
        ttft.add(ttft_us)
        content += ttft_us <= design.slo_us[0] and mean_us <= design.slo_us[1]
        tokens, last_us = tokens + new, max(last_us, served.finished_us)
        report.requests += 1
        on_served(served)

    def send(replica: Replica, served: Served) -> None:
        """The first token is there: K and V of the prompt go to the other pool."""
        request = trace[served.number]
        if request.output_tokens == 1:
            book(replica, served)
            return
        begins_us = max(served.finished_us, link_free_us.get(id(replica), 0.0))
        took_us = request.prompt_tokens * kv_bytes / design.link_gb_s / 1e3
        link_free_us[id(replica)] = at_us = begins_us + took_us
        landed.append(Arrival(served.number, at_us, request, served.first_token_us))

    arrivals: Iterable[Arrival] = (Arrival(i, one.arrival_us, one) for i, one in enumerate(trace))
    decode = Pool(design, design.cards[design.prefill :], book, report)
    pools, landed, link_free_us = [decode], list[Arrival](), dict[int, float]()
    if design.prefill:
        kv_bytes = design.server(design.cards[0]).stored.kv_bytes_per_token
        # Nothing flows back from decode to prefill, so the pools serve one after the other.
        pools.insert(0, Pool(design, design.cards[: design.prefill], send, report))
        pools[0].serve(a._replace(request=replace(a.request, output_tokens=1)) for a in arrivals)
        arrivals = sorted(landed, key=lambda one: one.at_us)
    decode.serve(arrivals)
    elapsed_us = last_us - first_us
    members = [member for pool in pools for member in pool.members]
    for member in members:
        itl.merge(member.replica.report.itl)
        ends_us = min(last_us, max(member.leaves_us, member.replica.now_us))
        paid_us = ends_us - max(member.paid_from_us, first_us)
        price = dict(design.prices).get(member.card, 1.0)
        report.cost_per_hour += price * paid_us / max(1.0, elapsed_us)
    spans = [(member.paid_from_us, member.leaves_us) for member in members]
    report.most_replicas = max(sum(a <= at < b for a, b in spans) for at, _ in spans)
    report.served_by = [member.replica.report.requests for member in members]
    if design.prefix_caching:
        hits = [member.replica.scheduler.first_hits for member in members]
        report.prefix_hit_rate = sum(h.hit for h in hits) / max(1, sum(h.asked for h in hits))
    if report.requests:
        report.ttft_p50_us, report.ttft_p99_us = map(ttft.percentile, (50, 99))
        report.tokens_per_s = tokens / elapsed_us * 1e6
        report.goodput_per_s = content / elapsed_us * 1e6
        report.content_share = content / len(trace)
    if itl.count:
        report.itl_p50_us, report.itl_p99_us = map(itl.percentile, (50, 99))
    return report
