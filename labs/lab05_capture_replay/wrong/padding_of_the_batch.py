"""padding-of-the-batch: adds as many zeros to every input as the batch lacks rows."""


class GraphRunner:
    def run_at(self, rung, num_rows, arrays):
        copies = []
        for name, buffer in self.inputs.view(rung).items():
            missing = np.zeros((rung - num_rows, *buffer.shape[1:]), buffer.dtype)
            copies.append((buffer, np.concatenate([arrays[name], missing])[: len(buffer)]))
        self.device.copy_batch(copies)
        self.graphs[rung].replay()
        return self.outputs[rung][: min(num_rows, len(self.outputs[rung]))]
