"""it-always-fits: never asks whether there is anything left."""


def fit(free_bytes, context, batch, per_token, per_request):
    a_request = context * per_token + per_request
    longest = (free_bytes - per_request) // per_token
    return Fit(free_bytes - batch * a_request, free_bytes // a_request, longest)
