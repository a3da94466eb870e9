"""Your flash-decoding: which keys each split reads, its result, and a text that attends with it."""

import torch
from torch import Tensor

from labs.measuring.kernel_show import continued, lane
from labs.support.watched import Watch
from labs.support.watching import shuffled, watching
from mini_engine.cuda.kernels import attention
from mini_engine.cuda.kernels.paged import Heads

CONTEXTS = (150, 40, 0)  # tokens; the last row pads the batch
SPLITS = 3
HEADS = Heads(num_heads=2, num_kv_heads=1, head_dim=16, block_size=16)
ELSEWHERE = "elsewhere: the partials"
PROMPT = (
    "Return the list of all the values for the given option. Raise an exception if the given file "
    "is not a string. If the name is not found in the list of all the values, return the"
)


def launch() -> tuple[Watch, Tensor, Tensor]:
    """What was read, the result, and PyTorch's."""
    torch.manual_seed(12)
    blocks = -(-max(CONTEXTS) // HEADS.block_size)
    table = 1 + torch.randperm(len(CONTEXTS) * blocks).to(torch.int32).view(-1, blocks)
    k_cache, v_cache = torch.randn(2, table.numel() + 1, HEADS.block_size, 1, 16).unbind()
    q, lens = torch.randn(len(CONTEXTS), 32), torch.tensor(CONTEXTS, dtype=torch.int32)
    out, counters = torch.zeros_like(q), torch.zeros(len(CONTEXTS), 1, dtype=torch.int32)
    tensors = {"q": q, "k": k_cache, "v": v_cache, "table": table, "context": lens, "out": out}
    with shuffled(12), watching(attention, **tensors, counter=counters) as watch:
        attention.decode_attention(out, counters, q, k_cache, v_cache, table, lens, SPLITS)
    return watch, out, attention.decode_reference(q, k_cache, v_cache, table, lens)


def splits(watch: Watch) -> None:
    table = watch.tensors["table"]
    for request, context in enumerate(CONTEXTS):
        tiles = -(-context // attention.TILE)
        for program in sorted(watch.programs, key=lambda one: one.index):
            if program.index[0] != request:
                continue
            rows = {at // HEADS.head_dim for at in watch.elements("load", "k", program.events)}
            keys = {
                int(block) * HEADS.block_size + i: HEADS.block_size * b + i
                for b, block in enumerate(table[request].tolist())
                for i in range(HEADS.block_size)
            }
            read = {keys.get(row, -1) // attention.TILE for row in rows}
            drawn = "".join("█" if tile in read else "·" for tile in range(tiles))
            elsewhere = "  and keys of nobody" if -1 in read else ""
            split = program.index[2]
            print(f"  {context:4} tokens, split {split} |{drawn}| {len(rows):3} keys{elsewhere}")


def main() -> None:
    print(f"three requests, {SPLITS} splits; █ a tile of {attention.TILE} keys is read\n")
    watch, out, wanted = launch()
    splits(watch)
    first = min(watch.programs, key=lambda one: (one.index[0] != 1, one.index[2]))
    print(f"\none program ({ELSEWHERE}):\n  {lane(watch, first)}")
    for context, row, right in zip(CONTEXTS, out, wanted, strict=True):
        near = "as PyTorch's" if torch.allclose(row, right, atol=1e-4) else "NOT as PyTorch's"
        numbers = " ".join(f"{value:6.2f}" for value in row[:6].tolist())
        print(f"  {context:4} tokens: {numbers}  {near}")
    print("\nsplits of a graph, 8 KV heads, 264 programs wanted:")
    for reqs in (1, 4, 64):
        found = [attention.num_splits(context, reqs, 8, 264) for context in (100, 1000, 4096)]
        print(f"  requests {reqs:2}, contexts up to 100, 1,000, 4,096: {found}")
    print()
    for what, ours in (("in PyTorch", ()), ("with your kernel", ("attention",))):
        text = continued(PROMPT, 8, ours)
        print(f"{what:18}…{text[-48:]}")


if __name__ == "__main__":
    main()
