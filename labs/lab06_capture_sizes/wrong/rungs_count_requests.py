"""rungs-count-requests: adds numbers of requests where numbers of tokens are needed."""


def _decode_sizes(max_num_seqs, query_len):
    return [max_num_seqs] if query_len == 1 else [*_grid(max_num_seqs), max_num_seqs]
