"""no-context-is-a-batch: files what nobody has announced under None, and captures it."""


class GraphWrapper:
    def __call__(self, *inputs):
        descriptor = self.context.descriptor
        if descriptor is not None and descriptor.mode is not self.mode:
            return self.function(*inputs)
        entry = self.entries.setdefault(descriptor, Entry())
        if entry.graph is None:
            return self._capture(entry, inputs)
        if self.debug and entry.addresses != tuple(x.address for x in inputs):
            raise AssertionError("an input has moved")
        entry.graph.replay()
        return entry.output
