"""Nobody complains until the house is full: the user who came last is forgotten while it is silent.

Fault: pads with slot -1, which the kernels take for the last one.
"""


class StaticInputs:
    def stage(self, rows, arrays):
        copies = []
        for name, buffer in self.view(rows).items():
            padded = np.full(buffer.shape, -1 if name == "slots" else 0, buffer.dtype)
            padded[: len(arrays[name])] = arrays[name]
            copies.append((buffer, padded))
        self.device.copy_batch(copies)
