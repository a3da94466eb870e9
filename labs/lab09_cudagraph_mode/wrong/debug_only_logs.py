"""debug-only-logs: says that an input has moved, and replays."""


class GraphWrapper:
    def __call__(self, *inputs):
        descriptor = self.context.descriptor
        if descriptor is None or descriptor.mode is not self.mode:
            return self.function(*inputs)
        entry = self.entries.setdefault(descriptor, Entry())
        if entry.graph is None:
            return self._capture(entry, inputs)
        if self.debug and entry.addresses != tuple(x.address for x in inputs):
            print("an input has moved")
        entry.graph.replay()
        return entry.output
