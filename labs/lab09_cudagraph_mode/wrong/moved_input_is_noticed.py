"""moved-input-is-noticed: captures anew for inputs at other addresses."""


class GraphWrapper:
    def __call__(self, *inputs):
        descriptor = self.context.descriptor
        if descriptor is None or descriptor.mode is not self.mode:
            return self.function(*inputs)
        entry = self.entries.setdefault(descriptor, Entry())
        moved = entry.addresses != tuple(x.address for x in inputs)
        if self.debug and entry.graph is not None and moved:
            raise AssertionError("an input has moved")
        if entry.graph is None or moved:
            return self._capture(entry, inputs)
        entry.graph.replay()
        return entry.output
