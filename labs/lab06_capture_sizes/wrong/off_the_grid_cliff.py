"""off-the-grid-cliff: captures the grid alone, so that a max_num_seqs of 6 has no rung."""


def _decode_sizes(max_num_seqs, query_len):
    grid = _grid(max_num_seqs)
    return grid if query_len == 1 else [n * query_len for n in (*grid, max_num_seqs)]
