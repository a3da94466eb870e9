"""Another right way: a closure for each rung that makes a step; host batches by concatenation."""


class GraphRunner:
    def __init__(self, device, forward, inputs, sizes, *, share_pool=True, pool=None):
        self.forward, self.inputs, self.device = forward, inputs, device
        self.ladder = CaptureLadder(sizes)
        self.pool = pool
        if pool is None:
            self.pool = device.memory.new_pool()
        self.graphs = {}
        self._steps = {}  # rung -> what makes a step at it
        self._apart = not share_pool

    def capture(self, order=None):
        self.graphs, self._steps = {}, {}
        return capture_ladder(list(self.ladder), self._prepare, order)

    def run(self, num_rows, arrays):
        rung = self.rung_for(num_rows)
        return self.run_at(rung, num_rows, arrays)

    def rung_for(self, num_rows):
        fitting = [rung for rung in self.graphs if rung >= num_rows]
        if not fitting:
            top = max(self.graphs, default="none")
            raise CaptureError(f"the largest graph is {top}, and there are {num_rows} rows")
        return min(fitting)

    def run_at(self, rung, num_rows, arrays):
        return self._steps[rung](num_rows, arrays)

    def _record(self, rung):
        capture = self.device.capture(self.pool, f"{rung} rows")
        graph = capture.__enter__()
        try:
            output = self.forward(rung)
        except BaseException as error:
            capture.__exit__(type(error), error, error.__traceback__)
            raise
        capture.__exit__(None, None, None)
        return graph, output

    def _prepare(self, rung):
        if self._apart:
            self.pool = self.device.memory.new_pool()
        start_us, start_bytes = self.device.cpu_us, self.device.memory.reserved_bytes(self.pool)
        self.inputs.clear()
        with self.device.allocating_from(self.pool):
            warm = self.forward(rung)
        self.device.read(warm)  # which waits for the GPU
        self.device.free(warm)
        graph, output = self._record(rung)
        static = self.inputs.view(rung)

        def step(num_rows, arrays):
            whole = {}
            for name, buffer in static.items():
                given = np.asarray(arrays[name], buffer.dtype)
                rest = np.zeros((len(buffer) - len(given), *given.shape[1:]), given.dtype)
                whole[name] = np.concatenate([given, rest])
            self.device.copy_batch([(static[name], whole[name]) for name in sorted(whole)])
            graph.replay()
            return output if len(output) <= num_rows else output[:num_rows]

        self.graphs |= {rung: graph}
        self._steps[rung] = step
        return RungReport(
            rung=rung,
            graphs=len(graph.graphs),
            time_us=self.device.cpu_us - start_us,
            pool_growth_bytes=self.device.memory.reserved_bytes(self.pool) - start_bytes,
            driver_bytes=graph.driver_bytes,
        )
