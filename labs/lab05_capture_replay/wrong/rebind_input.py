"""rebind-input: puts the batch into a new buffer under the old name (as in pytorch PR 137318)."""


class GraphRunner:
    def run_at(self, rung, num_rows, arrays):
        for name, buffer in self.inputs.buffers.items():
            padded = np.zeros(buffer.shape, buffer.dtype)
            padded[: len(arrays[name])] = arrays[name]
            self.inputs.buffers[name] = self.device.upload(padded)
        self.graphs[rung].replay()
        return self.outputs[rung][: min(num_rows, len(self.outputs[rung]))]
