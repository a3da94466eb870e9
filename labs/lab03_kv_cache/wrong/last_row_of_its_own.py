"""last-row-of-its-own: counts rows from each request's own first one."""


def request_arrays(entries, width):
    query_lens = [entry.query_len for entry in entries]
    table = np.zeros((len(entries), width), np.int32)
    for row, entry in zip(table, entries, strict=True):
        row[: len(entry.block_table)] = entry.block_table
    return {
        "query_lens": query_lens,
        "context_lens": [entry.start + entry.query_len for entry in entries],
        "last_rows": [query_len - 1 for query_len in query_lens],
        "block_table": table,
    }
