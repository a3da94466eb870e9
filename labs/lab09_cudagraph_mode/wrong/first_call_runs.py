"""first-call-runs: warms up before it records, as one does who captures with nobody to help."""


class GraphWrapper:
    def _capture(self, entry, inputs):
        if not self.context.capturing_enabled:
            raise RuntimeError("capturing is disabled")
        self.function(*inputs)
        with self.device.capture(self.pool) as graph:
            output = self.function(*inputs)
            if self.weak_output:
                self.device.free(output)
        entry.graph, entry.output = graph, WeakBuffer(output)
        entry.addresses = tuple(x.address for x in inputs)
        return entry.output if self.weak_output else output
