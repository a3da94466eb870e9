"""eager-hides-it: what finds no graph runs without one, and nobody hears of it.
# to: runner_c.py
"""


class GraphRunner:
    def __init__(self, device, forward, inputs, sizes, *, share_pool=True, pool=None):
        self.device, self.forward, self.inputs = device, forward, inputs
        self.sizes = sizes
        self.ladder = CaptureLadder([size for size in sizes if size <= 8 or size % 8 == 0])
        self.share_pool = share_pool
        self.pool = device.memory.new_pool() if pool is None else pool
        self.graphs, self.outputs = {}, {}

    def run(self, num_rows, arrays):
        rung = next((r for r in sorted(self.graphs) if r >= num_rows), None)
        if rung is None and num_rows > max(self.sizes):
            raise CaptureError(f"a batch of {num_rows} is above the sizes {list(self.sizes)}")
        if rung is None:
            self.inputs.stage(num_rows, arrays)
            return self.forward(num_rows)
        self.inputs.stage(rung, arrays)
        self.graphs[rung].replay()
        return self.outputs[rung][: min(num_rows, len(self.outputs[rung]))]
