"""any-mode-is-mine: takes every batch that is to run as a graph, of whatever mode."""


class GraphWrapper:
    def __call__(self, *inputs):
        descriptor = self.context.descriptor
        if descriptor is None or descriptor.mode is CUDAGraphMode.NONE:
            return self.function(*inputs)
        entry = self.entries.setdefault(descriptor, Entry())
        if entry.graph is None:
            return self._capture(entry, inputs)
        if self.debug and entry.addresses != tuple(x.address for x in inputs):
            raise AssertionError("an input has moved")
        entry.graph.replay()
        return entry.output
