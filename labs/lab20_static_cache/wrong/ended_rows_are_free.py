"""ended-rows-are-free: counts a row until its answer ends, and nothing of it afterwards."""


def columns_of_batch(requests, t_max):
    live = sum(output - 1 for _, output in requests)
    needed = sum((n - 1) * p + n * (n - 1) // 2 for p, n in requests)
    return MaskedColumns(needed=needed, beyond=live * t_max - needed, ended=0)
