"""no-rescale: sums under each new maximum, and leaves what was summed before as it is."""


@triton.jit
def online_softmax(scores, valid, values, best, total, acc):
    scores = tl.where(valid, scores, LOWEST)
    new_best = tl.maximum(best, tl.max(scores, axis=1))
    weights = tl.where(valid, tl.exp(scores - new_best[:, None]), 0.0)
    total = total + tl.sum(weights, axis=1)
    acc = tl.dot(weights.to(values.dtype), values, acc, input_precision="ieee")
    return new_best, total, acc
