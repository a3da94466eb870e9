"""Where your dispatcher sends a row of batches, what modes become, and what a wrapper answers."""

import numpy as np

from labs.lab09b_cudagraph_mode.resolve import AttentionCGSupport, resolve_mode
from labs.lab09b_cudagraph_mode.wrapper import ForwardContext, GraphWrapper
from mini_engine.dispatch.dispatcher import BatchDescriptor, GraphDispatcher, uniform_token_count
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.sim.device import Device
from mini_engine.sim.kernels import scale
from mini_engine.sim.launch import Buffer
from mini_engine.step.cards import load_spec

SIZES, SEQS = [1, 2, 4, 8, 16], 6
PAIRS = ("FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
BATCHES = [([1] * n, False) for n in range(1, 7)] + [([1] * 4 + [n], True) for n in (1, 3, 9, 20)]


def batches() -> None:
    print(f"sizes {SIZES}, {SEQS} requests: F a full graph, P pieces, N eager, and its rows\n")
    heads = [f"{len(lens)}d" if not prompt else f"4d+{lens[-1]}p" for lens, prompt in BATCHES]
    print(f"{'batch':19}", *(f"{head:>6}" for head in heads))
    for mode in CUDAGraphMode:
        dispatcher = GraphDispatcher(mode, SIZES, SEQS)
        ran = []
        for lens, prompt in BATCHES:
            uniform = uniform_token_count(lens, has_prefill=prompt)
            key = dispatcher.dispatch(len(lens), sum(lens), uniform)
            ran.append(f"{key.mode.name[0]}{key.num_tokens}")
        print(f"{mode.name:19}", *(f"{one:>6}" for one in ran))
    drafts = GraphDispatcher("FULL_DECODE_ONLY", [8, 16, 40, 48], SEQS, 7)
    rungs = [f"{key.num_tokens} of {key.num_reqs}" for key in drafts.descriptors()]
    print("graphs with six drafts, tokens of requests:", ", ".join(rungs))


def resolved(mode: str, support: AttentionCGSupport, drafts: int) -> str:
    try:
        return resolve_mode(
            mode,
            support,
            attention_in_splitting_ops=True,
            compilation_mode="VLLM_COMPILE",
            uniform_decode_query_len=1 + drafts,
        ).name
    except ValueError:
        return "ValueError"


def modes() -> None:
    print(f"\n{'asked for, drafts':22}", *(f"{one.name[:14]:>19}" for one in AttentionCGSupport))
    for mode in PAIRS:
        for drafts in (0, 6):
            became = [resolved(mode, support, drafts) for support in AttentionCGSupport]
            print(f"{mode:19}{drafts:3}", *(f"{one:>19}" for one in became))


def wrapper() -> None:
    device, context = Device(load_spec("h200"), memory_bytes=2**24), ForwardContext()

    def doubled(x: Buffer) -> Buffer:
        out = device.empty(x.shape)
        device.launch(scale, out, x, by=2.0)
        return out

    wrapped = GraphWrapper(device, doubled, CUDAGraphMode.PIECEWISE, context, pool=None)
    here, there = (device.upload(np.full(1, value, np.float32)) for value in (3, 5))
    key = BatchDescriptor(CUDAGraphMode.PIECEWISE, 1)
    other = BatchDescriptor(CUDAGraphMode.FULL, 1)
    print("\na wrapper around 2x: input 3, and 5 at another address")
    for what, descriptor, x in (
        ("no descriptor", None, here),
        ("FULL is meant", other, here),
        ("first call", key, here),
        ("second call", key, here),
        ("input moved", key, there),
    ):
        before = device.counters.copy()
        with context.holding(descriptor):
            answer = wrapped(x)
        did = device.counters.since(before)
        value = f"{device.read(answer)[0]:g}" if did.kernels else "garbage, nothing has run"
        print(f"  {what:14} {did.kernels} kernels, {did.graphs} graph launches: {value}")


if __name__ == "__main__":
    batches()
    modes()
    wrapper()
