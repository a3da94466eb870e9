"""mended-at-the-top: adds the largest size, at which the server died; the others stay left out.
# to: runner_c.py
"""


class GraphRunner:
    def __init__(self, device, forward, inputs, sizes, *, share_pool=True, pool=None):
        self.device, self.forward, self.inputs = device, forward, inputs
        aligned = {size for size in sizes if size <= 8 or size % 8 == 0}
        self.ladder = CaptureLadder(sorted(aligned | {max(sizes)}))
        self.share_pool = share_pool
        self.pool = device.memory.new_pool() if pool is None else pool
        self.graphs, self.outputs = {}, {}
