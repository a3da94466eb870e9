"""no-error-no-fault: the crash is caught, so the incident is closed; the largest graph answers.
# to: runner_c.py
"""


class GraphRunner:
    def __init__(self, device, forward, inputs, sizes, *, share_pool=True, pool=None):
        self.device, self.forward, self.inputs = device, forward, inputs
        self.ladder = CaptureLadder([size for size in sizes if size <= 8 or size % 8 == 0])
        self.share_pool = share_pool
        self.pool = device.memory.new_pool() if pool is None else pool
        self.graphs, self.outputs = {}, {}

    def run(self, num_rows, arrays):
        try:
            rung = next(r for r in sorted(self.graphs) if r >= num_rows)
        except StopIteration:
            rung = max(self.graphs)
            arrays = {name: array[:rung] for name, array in arrays.items()}
        self.inputs.stage(rung, arrays)
        self.graphs[rung].replay()
        return self.outputs[rung][: min(num_rows, len(self.outputs[rung]))]
