"""releases-at-the-end: lets the next kernel start when this one has stored its result."""


@triton.jit
def silu_mul_kernel(out, gate_up, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    pdl_wait(PDL)
    at = gate_up + row * 2 * WIDTH + column
    gate = tl.load(at, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    up = tl.load(at + WIDTH, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    product = silu(gate) * up
    tl.store(out + row * WIDTH + column, product.to(out.dtype.element_ty), mask=inside)
    pdl_release(PDL)
