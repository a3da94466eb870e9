"""requests-are-tokens-alone: a request takes its cache, and nothing beside it."""


def fit(free_bytes, context, batch, per_token, per_request):
    left = free_bytes - batch * (context * per_token + per_request)
    tokens = max(0, free_bytes // per_token)
    return Fit(left, tokens // context, tokens)
