"""it-always-fits: never asks whether there is anything left."""


def largest_batch(free_bytes, context, per_token, per_request):
    return free_bytes // (context * per_token + per_request)


def longest_context(free_bytes, per_token, per_request):
    return (free_bytes - per_request) // per_token
