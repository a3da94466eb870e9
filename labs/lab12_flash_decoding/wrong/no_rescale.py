"""no-rescale: sums under each new maximum, and leaves what was summed before as it is."""


@triton.jit
def online_softmax(scores, valid, values, m, l, acc):
    scores = tl.where(valid, scores, LOWEST)
    m_new = tl.maximum(m, tl.max(scores, axis=1))
    weights = tl.where(valid, tl.exp(scores - m_new[:, None]), 0.0)
    l = l + tl.sum(weights, axis=1)
    acc = tl.dot(weights.to(values.dtype), values, acc, input_precision="ieee")
    return m_new, l, acc
