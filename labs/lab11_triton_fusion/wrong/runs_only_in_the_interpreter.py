"""runs-only-in-the-interpreter: writes Python where the interpreter takes it: a loop over two addresses, a list of tiles."""


@triton.jit
def silu_mul_kernel(out, gate_up, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    pdl_release(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    pdl_wait(PDL)
    at = gate_up + row * 2 * WIDTH + column
    halves = []
    for begin in (at, at + WIDTH):
        half = tl.load(begin, mask=inside, other=0.0, cache_modifier=".cg")
        halves.append(half.to(tl.float32))
    gate, up = halves
    product = silu(gate) * up
    tl.store(out + row * WIDTH + column, product.to(out.dtype.element_ty), mask=inside)
