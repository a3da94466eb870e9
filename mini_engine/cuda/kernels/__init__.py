"""The Triton kernels of a decode step, one family a file, each beside its PyTorch reference.

A model calls the ops (`torch.library.custom_op`), never a kernel. launch.py says what an op
computes on a CPU, and what its `pdl` switch does.

    norm.py, activation.py, rope.py, attention.py    of a layer of nine
    linear.py            its products, of nine and of five, in the kernels of
      gemv_dot.py        tensor cores, 1 to 4 tokens in bf16
      gemv.py            registers, 1 to 4 tokens in any type
    fused_attention.py   of a layer of five: RoPE, KV write and attention
    prefill.py           attention of nine, with prompts
    head.py, pick.py     the end of a greedy step: logits and tokens
    paged.py             the pieces of the attention kernels

Every kernel computes in float32 and rounds where it stores. On a CPU the kernels run in Triton's
interpreter; labs/support/interpreter.py makes that honest about bf16.
"""
