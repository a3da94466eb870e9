"""reads-through-l1: loads what the step has just written like any weight."""


@triton.jit
def add_rms_norm_kernel(
    out, residual, x, weight, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    pdl_release(PDL)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    pdl_wait(PDL)
    at = tl.program_id(0).to(tl.int64) * WIDTH + column
    row = tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    row += tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    stored = row.to(residual.dtype.element_ty)
    tl.store(residual + at, stored, mask=inside)
    row = stored.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(row * row, axis=0) / WIDTH + eps)
    tl.store(out + at, (row * inverse * scale).to(out.dtype.element_ty), mask=inside)
