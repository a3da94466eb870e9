"""What start-up does to capture a ladder of graphs, before any graph exists.

In: the descriptors to capture (`GraphDispatcher.descriptors()`), or a few numbers. Out: the plan
of the captures as a list of events, how many graphs will be held, and how many bytes they will
take. Nothing here touches a device: the runners of both wings follow the plan.

Behaviour is vLLM 0.33's, `vllm/v1/worker/gpu/cudagraph_utils.py`: `CudaGraphManager.capture` and
`_extrapolate_full_graph_memory`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mini_engine.dispatch.dispatcher import BatchDescriptor
from mini_engine.dispatch.modes import CUDAGraphMode


def capture_events(
    descriptors: Iterable[BatchDescriptor], *, breakable: bool = False
) -> list[tuple[str | int, ...]]:
    """What happens at start-up, in order, to capture these graphs: the plan a runner follows.

    Each graph: inputs are prepared, one eager warm-up runs, then the capture. A FULL graph is
    entered by the dispatcher's owner and records an eager-mode forward. Compiled PIECEWISE
    captures inside the forward itself and keeps the warm-up's inputs; `breakable` PIECEWISE (cut
    by breaks while capturing) and FULL get fresh ones, since warm-up may change attention state.
    """
    events: list[tuple[str | int, ...]] = []
    graphs = 0
    for rung in descriptors:
        mode, tokens = rung.mode.name, rung.num_tokens
        is_full = rung.mode is CUDAGraphMode.FULL
        events += [("prepare_inputs", mode, tokens, "warmup"), ("forward", "NONE", tokens)]
        if is_full or breakable:
            events.append(("prepare_inputs", mode, tokens, "capture"))
        if is_full:
            graphs += 1
            events.append(("graph_enter", graphs, "GLOBAL_POOL"))
            events += [("forward", "NONE", tokens), ("graph_exit", graphs)]
        else:
            events.append(("forward", mode, tokens))
    return events


def extrapolate_graph_memory(mem_samples_bytes: Sequence[int], total_full_graphs: int) -> int:
    """Bytes that all FULL graphs will take, from the first one or two captured, largest first.

    The first pays for the pool; later ones reuse it, so the second stands for all the rest. Each
    is taken as 1 MiB at least, for what the driver keeps for a graph.
    """
    if not mem_samples_bytes:
        return 0
    first, *rest = mem_samples_bytes
    each = max(rest[0], 1 << 20) if rest else 0
    return first + (total_full_graphs - 1) * each


def piecewise_graph_count(layers: int, sizes: int, lora_cases: int = 1) -> int:
    """Piecewise graphs held: L attention layers leave L + 1 captured pieces, at every size."""
    return (layers + 1) * sizes * lora_cases
