"""rounds-before-the-gain: rounds the normed row to bf16 before the weight, as transformers does."""


@triton.jit
def rms_norm_kernel(
    out, x, weight, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    pdl_release(PDL)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    pdl_wait(PDL)
    at = tl.program_id(0).to(tl.int64) * WIDTH + column
    row = tl.load(x + at, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    inverse = tl.rsqrt(tl.sum(row * row, axis=0) / WIDTH + eps)
    normed = (row * inverse).to(x.dtype.element_ty).to(tl.float32)
    tl.store(out + at, (normed * scale).to(out.dtype.element_ty), mask=inside)
