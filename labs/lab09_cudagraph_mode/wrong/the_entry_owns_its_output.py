"""the-entry-owns-its-output: keeps the output itself where a later piece reads it."""


class GraphWrapper:
    def _capture(self, entry, inputs):
        if not self.context.capturing_enabled:
            raise RuntimeError("capture before serving")
        with self.device.capture(self.pool) as graph:
            output = self.function(*inputs)
            kept = output
            if self.weak_output:
                self.device.free(output)
                kept = WeakBuffer(output)
        entry.graph, entry.output = graph, kept
        entry.addresses = tuple(x.address for x in inputs)
        return kept
