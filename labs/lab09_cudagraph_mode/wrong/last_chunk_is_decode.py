"""last-chunk-is-decode: goes by the shape; a last prompt chunk of one token passes for a decode."""


def uniform_token_count(query_lens, *, has_prefill=False):
    lengths = set(query_lens)
    return lengths.pop() if len(lengths) == 1 else None
