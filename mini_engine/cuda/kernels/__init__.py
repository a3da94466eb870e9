"""The Triton kernels of a decode step, one family a file, each beside its PyTorch reference.

A model calls the ops (`torch.library.custom_op`), never a kernel. launch.py says what an op
computes on a CPU, and what its `pdl` switch does.

    file                 ops                                                in a layer of
    norm.py              rms_norm, add_rms_norm                             nine
    activation.py        silu_mul                                           nine
    rope.py              rope_kv_write (with the norms of q and k)          nine
    attention.py         decode_attention                                   nine
    linear.py            linear                                             nine
                         library_linear: by a library's product             nine, above 4 tokens
                         norm_linear, linear_add, norm_gate_up_silu_mul     five
      gemv_dot.py        its kernels for 1 to 4 tokens in bf16: tensor cores
      gemv.py            the same in any type: registers
      gemv_quantized.py  the same for weights of 8 and 4 bits
    fused_attention.py   rope_kv_write_attention                            five
    prefill.py           prefill_attention                                  nine, with prompts
    head.py              norm_lm_head                                       the end of a step
    pick.py              pick_tokens, pick_and_advance                      the end of a step
    sample.py            draw: between head and pick                        a sampled step
    paged.py             the pieces of the attention kernels
    e4m3.py              a cache in fp8 inside kernels

Beside this folder, for those who have no Triton too: ../quantized_matrix.py (how weights of few
bits are packed), ../gumbel.py and ../fp8.py (sampling and e4m3 in PyTorch). On a CPU the kernels
run in Triton's interpreter; labs/support/interpreter.py makes that honest about bf16.

Every kernel computes in float32 and rounds where it stores, so less often than an unfused model.
"""
