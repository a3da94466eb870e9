"""sums-are-as-narrow-as-values: rounds acc to the dtype of the values after each tile."""


@triton.jit
def online_softmax(scores, valid, values, m, l, acc):
    scores = tl.where(valid, scores, LOWEST)
    m_new = tl.maximum(m, tl.max(scores, axis=1))
    weights = tl.where(valid, tl.exp(scores - m_new[:, None]), 0.0)
    keep = tl.exp(m - m_new)
    l = l * keep + tl.sum(weights, axis=1)
    acc = tl.dot(weights.to(values.dtype), values, acc * keep[:, None], input_precision="ieee")
    return m_new, l, acc.to(values.dtype).to(tl.float32)
