"""context-without-this-step: the context is what was there before the step."""


def request_arrays(entries, width):
    query_lens = [entry.query_len for entry in entries]
    table = np.zeros((len(entries), width), np.int32)
    for row, entry in zip(table, entries, strict=True):
        row[: len(entry.block_table)] = entry.block_table
    return {
        "query_lens": query_lens,
        "context_lens": [entry.start for entry in entries],
        "last_rows": np.cumsum(query_lens) - 1,
        "block_table": table,
    }
