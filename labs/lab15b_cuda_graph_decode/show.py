"""What three requests get through your graphs, and what the device was given for it.

On the emulator, so the lines are the same with a GPU and without. Nothing is timed; what such steps
take is predicted.
"""

from __future__ import annotations

import gc
from collections import Counter

import torch

from labs.support.stream_log import logged
from mini_engine.cuda.graphs.backend import graphs_for
from mini_engine.cuda.graphs.capture import GraphRunner
from mini_engine.cuda.model import KVCache, Model
from mini_engine.cuda.runner import TorchRunner
from mini_engine.cuda.weights import load_weights
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.engine.batch import Request, SchedulerLimits
from mini_engine.engine.engine import Engine, StepRecord
from mini_engine.engine.generation import SHIPPED
from mini_engine.model.config import ModelConfig, named_shape
from mini_engine.model.tokenizer import Tokenizer
from mini_engine.step.cards import load_spec
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.run import step_time

PROMPTS = {"Raise an error if": 8, "A CUDA graph": 4, "The first launch": 6}  # text: tokens
CONFIG = ModelConfig.from_folder(SHIPPED)
TOKENIZER = Tokenizer(SHIPPED, CONFIG.eos_token_ids)
LIMITS = SchedulerLimits(
    max_num_seqs=4,
    max_num_batched_tokens=32,
    num_blocks=16,
    block_size=16,
    max_model_len=48,
    steps_per_replay=2,
)


def served() -> None:
    """Capture, serve the prompts, and print what was captured, replayed and written."""
    graphs = graphs_for("cpu")
    cache = KVCache.allocate(CONFIG, LIMITS.num_blocks, 16, graphs.device, torch.float32)
    model = Model(load_weights(CONFIG, SHIPPED, graphs.device, torch.float32), cache)
    dispatcher = GraphDispatcher("FULL_DECODE_ONLY", [2, 4], LIMITS.max_num_seqs)
    runner = TorchRunner(model, LIMITS, dispatcher, graphs)
    report = runner.capture()
    for rung in report.rungs:
        print(f"rung {rung.rung}: the pool grew by {rung.pool_growth_bytes:,} bytes")
    requests = [
        Request(str(i), tuple(TOKENIZER.encode(prompt)), count)
        for i, (prompt, count) in enumerate(PROMPTS.items())
    ]
    steps: list[StepRecord] = []
    done = Engine(runner, LIMITS, dispatcher).run(requests, on_step=steps.append)
    ran = [f"{step.batch.num_reqs}:{step.descriptor.num_tokens}" for step in steps]
    print("requests and the rows that ran for them, step by step:", *ran)
    for one in sorted(done, key=lambda one: one.request.request_id):
        print(f"{one.request.request_id} {TOKENIZER.decode(list(one.tokens))!r}")
    predicted(steps)


def predicted(steps: list[StepRecord]) -> None:
    """Tokens a second of Qwen3-0.6B on an H200 that decodes these batches, eagerly and as here."""
    spec, tokens = load_spec("h200"), 0
    eager_us = graphs_us = 0.0
    for step in (step for step in steps if step.descriptor.mode is CUDAGraphMode.FULL):
        replayed = max(Counter(request for request, _ in step.written).values())
        shape = StepShape.decode(step.descriptor.num_tokens, 512)
        ops = step_ops(named_shape("qwen3-0.6b"), shape, spec.ops)
        tokens += len(step.written)
        eager_us += replayed * step_time(ops, spec, "eager", step.batch.num_reqs).itl_us
        graphs_us += step_time(ops * replayed, spec, "full", step.batch.num_reqs).itl_us
    if tokens:
        print("These decode steps of Qwen3-0.6B on an H200, in tokens a second (predicted):")
        for how, took_us in (("eagerly", eager_us), ("in your graphs", graphs_us)):
            print(
                f"  {how:14} {'█' * round(50 * graphs_us / took_us)} {1e6 * tokens / took_us:,.0f}"
            )


def captured() -> None:
    """A program of one op on two rungs, and what the emulator's log has of its capture."""
    graphs, x = graphs_for("cpu"), torch.zeros(4)
    runner = GraphRunner(graphs, lambda rung: x[:rung] * 2, [2, 4], graphs.graph_pool_handle())
    with logged() as log:
        x.fill_(3)
        runner.capture()
    for work in log.works:
        print(f"stream {log.number(work.stream)}: {work.op}")
    print(f"races: {log.races() or 'none'}; all waited for: {log.waited_for(work.stream)}")
    print(f"replayed: {runner.replay(4).tolist()} {runner.replay(2).tolist()}\n")


def main() -> None:
    captured()
    served()


if __name__ == "__main__":
    gc.freeze()  # each capture collects garbage first: it need not look through PyTorch's modules
    with torch.inference_mode():
        main()
