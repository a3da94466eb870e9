"""tokens-are-the-key: one graph for each number of tokens, whoever brings them."""


class GraphWrapper:
    def __call__(self, *inputs):
        descriptor = self.context.descriptor
        if descriptor is None or descriptor.mode is not self.mode:
            return self.function(*inputs)
        entry = self.entries.setdefault(descriptor.num_tokens, Entry())
        if entry.graph is None:
            return self._capture(entry, inputs)
        if self.debug and entry.addresses != tuple(x.address for x in inputs):
            raise AssertionError("an input has moved")
        entry.graph.replay()
        return entry.output
