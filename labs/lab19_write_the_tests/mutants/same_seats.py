"""Two friends leave, two strangers come, and the strangers' words are counted for the friends.

Fault: which slot a row belongs to is copied in only when the number of rows has changed.
"""


class StaticInputs:
    rows = None

    def clear(self):
        self.rows = None
        self.device.copy_batch([(b, np.zeros(b.shape, b.dtype)) for b in self.buffers.values()])

    def stage(self, rows, arrays):
        copies, now = [], (rows, len(arrays["slots"]))
        for name, buffer in self.view(rows).items():
            if name == "slots" and now == self.rows:
                continue
            padded = np.zeros(buffer.shape, buffer.dtype)
            padded[: len(arrays[name])] = arrays[name]
            copies.append((buffer, padded))
        self.rows = now
        self.device.copy_batch(copies)
