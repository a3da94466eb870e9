"""few-large-programs: gives every program as many rows as its registers take, and counts no programs."""


def gemv_plan(num_rows, width, *, pairs=False, sm_count=H200_SM_COUNT):
    halves = 2 if pairs else 1
    rows = 8 // halves
    while rows > 1 and rows * halves * width > TILE_ELEMENTS:
        rows //= 2
    chunk = chunk_of(width, 2048)
    warps = 8 if rows * halves * width >= 8 * 32 * THREAD_ELEMENTS else 4
    return GemvPlan(rows, warps, chunk, -(-width // chunk))
