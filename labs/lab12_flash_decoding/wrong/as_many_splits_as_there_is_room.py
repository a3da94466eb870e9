"""as-many-splits-as-there-is-room: the more programs the better, whether there are tiles for them or not."""


def num_splits(max_context: int, num_reqs: int, num_kv_heads: int, num_programs: int) -> int:
    wanted = -(-num_programs // (num_reqs * num_kv_heads))
    return max(1, min(wanted, MAX_SPLITS))
