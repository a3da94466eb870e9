"""every-step-is-a-square: attention is quadratic, so every step compares all with all."""


def attention_pairs(query_lens, context_lens):
    contexts = context_lens.astype(np.int64)
    return int((contexts * (contexts + 1) // 2).sum())
