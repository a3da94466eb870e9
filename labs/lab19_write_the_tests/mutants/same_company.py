"""Where as many users speak as the last time, their new words are not heard.

Fault: copies the batch in only when its number of rows has changed.
"""


class StaticInputs:
    last = None

    def clear(self):
        self.last = None
        self.device.copy_batch([(b, np.zeros(b.shape, b.dtype)) for b in self.buffers.values()])

    def stage(self, rows, arrays):
        if self.last == (rows, len(arrays["x"])):
            return
        self.last = (rows, len(arrays["x"]))
        copies = []
        for name, buffer in self.view(rows).items():
            padded = np.zeros(buffer.shape, buffer.dtype)
            padded[: len(arrays[name])] = arrays[name]
            copies.append((buffer, padded))
        self.device.copy_batch(copies)
