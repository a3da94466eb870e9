"""sum-in-bf16: keeps the partial sums in the dtype of the weights."""


@triton.jit
def multiply(rows, x, ROWS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr):
    products = tl.zeros((ROWS, CHUNK), rows[0].dtype)
    for c in tl.static_range(CHUNKS):
        more = rows[c].to(tl.float32) * x[c][None, :]
        products = (products.to(tl.float32) + more).to(products.dtype)
    return tl.sum(products.to(tl.float32), axis=1)
