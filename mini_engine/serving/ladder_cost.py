"""What the graphs of a ladder cost to hold, what else a card holds, and what a better ladder saves.

    costs = LadderCosts(named_shape("qwen3-0.6b"), load_spec("h200"), "FULL_AND_PIECEWISE", 256)
    costs.of([1, 2, 4, 8]).capture_us

Nodes and capture time add up over the graphs. Activations do not: all graphs share one pool, which
is as large as the graph that needs most."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from mini_engine.dispatch.dispatcher import BatchDescriptor, GraphDispatcher
from mini_engine.dispatch.ladder import optimal_ladder
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.engine.batch import SchedulerLimits
from mini_engine.model.config import ModelConfig
from mini_engine.serving.report import ServeReport
from mini_engine.step.capacity import activation_bytes, step_bytes
from mini_engine.step.cards import DeviceSpec
from mini_engine.step.curves import CaptureCost, capture_cost
from mini_engine.step.kernels import step_ops
from mini_engine.step.run import padded_step
from mini_engine.step.step_model import StepModel
from mini_engine.step.storage import Stored, stored_as

# Published start-ups (validate/published/captures.json) took about twice what we count for warm-up,
# capture and instantiation. With that factor, each of them lies within these bounds. The memory
# they held is twice to four times our nodes and pool: an engine reports by how much free memory
# fell, so whatever its warm-ups took is in it. Before vLLM 0.10, Python's garbage collector ran at
# each size, which took 0.3 to 0.5 s more.
CAPTURE_FACTOR = 2.0
TIME_WITHIN, MEMORY_WITHIN = (0.5, 2.0), (1.0, 4.0)

BLOCK_SIZE = 16  # tokens


@dataclass(frozen=True)
class GraphCosts:
    """The graphs of one ladder. A piecewise rung is a graph for each piece."""

    piecewise_rungs: int
    piecewise_graphs: int
    full_graphs: int
    capture_us: float  # warm-up, capture and instantiation
    node_bytes: int  # what the driver keeps
    pool_bytes: int  # of the graph that needs most: activations, and logits where it has them

    @property
    def graphs(self) -> int:
        return self.piecewise_graphs + self.full_graphs

    @property
    def memory_bytes(self) -> int:
        return self.node_bytes + self.pool_bytes


class LadderCosts:
    """Costs of ladders for one model on one device."""

    def __init__(
        self, config: ModelConfig, spec: DeviceSpec, mode: CUDAGraphMode | str, max_num_seqs: int,
        *, decode_query_len: int = 1, stored: Stored | None = None,
    ) -> None:  # fmt: skip
        """`decode_query_len`: 1 + speculative tokens."""
        self.mode, self.max_num_seqs, self.decode_query_len = mode, max_num_seqs, decode_query_len

        @cache  # the ladders of a curve share most of their rungs
        def costs_of(graph: BatchDescriptor) -> tuple[CaptureCost, int]:
            """Of one rung: what capturing costs, and the bytes that it needs of the pool."""
            launched_as, shape = padded_step(graph, 1)
            ops = step_ops(config, shape, spec.ops, stored)
            held = activation_bytes(config, shape.num_tokens)
            if graph.mode is CUDAGraphMode.FULL:  # vLLM's end before the logits, SGLang's after
                inside = {op.name for op in ops if op.by != "torch"}
                a_logit = ("lm_head" in inside) * config.dtype_bytes
                a_logit += 4 * ("logits_to_float" in inside)
                held += shape.num_reqs * config.vocab_size * a_logit
            return capture_cost(ops, spec, launched_as), held

        self._costs_of = costs_of

    def of(self, sizes: Sequence[int]) -> GraphCosts:
        """Of the graphs of these capture sizes. Raises ValueError as `GraphDispatcher`."""
        dispatcher = GraphDispatcher(self.mode, sizes, self.max_num_seqs, self.decode_query_len)
        rungs = [(graph.mode, *self._costs_of(graph)) for graph in dispatcher.descriptors()]
        pieces = [cost.graphs for mode, cost, _ in rungs if mode is CUDAGraphMode.PIECEWISE]
        return GraphCosts(
            piecewise_rungs=len(pieces), piecewise_graphs=sum(pieces),
            full_graphs=len(rungs) - len(pieces),
            capture_us=CAPTURE_FACTOR * sum(cost.total_us for _, cost, _ in rungs),
            node_bytes=sum(cost.node_bytes for _, cost, _ in rungs),
            pool_bytes=max((pool for *_, pool in rungs), default=0),
        )  # fmt: skip


@dataclass(frozen=True)
class SizedServer:
    limits: SchedulerLimits
    dispatcher: GraphDispatcher
    graph_costs: GraphCosts  # of all graphs, which are captured at start-up


def size_server(
    config: ModelConfig, spec: DeviceSpec, mode: CUDAGraphMode | str, capture_sizes: Sequence[int],
    *, max_num_seqs: int | None = None, max_num_batched_tokens: int | None = None,
    stored: Stored | None = None, kv_blocks: int | None = None, prefix_caching: bool = False,
) -> SizedServer:  # fmt: skip
    """All memory that nothing else needs becomes KV blocks, `kv_blocks` at most:

        card = reserved + weights + activations of the largest step + graphs + KV cache

    The default limits are vLLM's on the card. Raises ValueError where no block is left."""
    max_num_seqs = max_num_seqs or spec.batch_defaults.max_num_seqs
    max_num_batched_tokens = max_num_batched_tokens or spec.batch_defaults.max_num_batched_tokens
    dispatcher = GraphDispatcher(mode, capture_sizes, max_num_seqs)
    stored = stored or stored_as(config)
    costs = LadderCosts(config, spec, mode, max_num_seqs, stored=stored).of(capture_sizes)
    used = spec.reserved_bytes + stored.held + costs.memory_bytes
    used += step_bytes(config, max_num_batched_tokens, max_num_seqs)
    num_blocks = (spec.vram_bytes - used) // (BLOCK_SIZE * stored.kv_bytes_per_token)
    if num_blocks < 2:  # the null block, and one for requests
        raise ValueError(
            f"{config.name} on {spec.name}: {used / 1e9:.1f} GB of {spec.vram_bytes / 1e9:.1f} GB "
            "are taken, and nothing is left for a KV cache: use a larger card, a smaller model or "
            "fewer rungs"
        )
    limits = SchedulerLimits(
        max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens,
        num_blocks=min(num_blocks, 1 + (kv_blocks or num_blocks)), block_size=BLOCK_SIZE,
        max_model_len=config.max_position_embeddings, prefix_caching=prefix_caching,
    )  # fmt: skip
    return SizedServer(limits, dispatcher, costs)


def same_steps_on(
    dispatcher: GraphDispatcher, report: ServeReport, costs: StepModel
) -> tuple[int, float]:
    """The steps of a run as another ladder's dispatcher has them: rows of padding, and time in µs.
    (Shorter steps would also change which requests meet; a second run shows that too.)"""
    padded_rows, total_us = 0, 0.0
    for ran, (steps, kv_tokens) in report.ran.items():
        # Where a graph takes any mix of requests, how many there were does not matter.
        num_reqs, uniform = (ran.rows, 1) if ran.uniform else (1, None)
        descriptor = dispatcher.dispatch(num_reqs, ran.rows, uniform)
        keys = round(kv_tokens / steps)
        padded_rows += (descriptor.num_tokens - ran.rows) * steps
        total_us += steps * costs.itl_us(*padded_step(descriptor, num_reqs, keys, keys))
    return padded_rows, total_us


@dataclass(frozen=True)
class LadderSaving:
    """The optimal ladder beside the one that ran. It is chosen by rows, and fewer rows may take
    longer: where the ladder that ran was the quicker one, it is the answer."""

    capture_sizes: tuple[int, ...]
    padded_rows: int  # that would be left
    saved_rows: int
    saved_us: float  # of step time
    saved_share: float  # of the time that the server was busy


def optimal_ladder_saving(
    report: ServeReport, costs: StepModel, dispatcher: GraphDispatcher
) -> LadderSaving | None:
    """None when no step ran in a graph. `dispatcher` is the one that the run used."""
    histogram: Counter[int] = Counter()
    for ran, (steps, _) in report.ran.items():
        if ran.descriptor.mode is not CUDAGraphMode.NONE:
            histogram[ran.rows] += steps
    if not histogram:
        return None
    # as many rungs, the same top, the fewest padded rows
    sizes = optimal_ladder(histogram, len(dispatcher.sizes), top=max(dispatcher.sizes))
    better = GraphDispatcher(dispatcher.mode, sizes, dispatcher.max_num_seqs)
    rows, us = same_steps_on(dispatcher, report, costs)
    left_rows, left_us = same_steps_on(better, report, costs)
    if left_us > us:
        return LadderSaving(dispatcher.sizes, rows, 0, 0.0, 0.0)
    share = (us - left_us) / report.busy_us
    return LadderSaving(tuple(sizes), left_rows, rows - left_rows, us - left_us, share)
