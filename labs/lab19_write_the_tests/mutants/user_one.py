"""Only the user of slot 1 complains: things change that were said long ago, while it was away.

Fault: pads with ones, so that a padded row writes to slot 1.
"""


class StaticInputs:
    def stage(self, rows, arrays):
        copies = []
        for name, buffer in self.view(rows).items():
            padded = np.ones(buffer.shape, buffer.dtype)
            padded[: len(arrays[name])] = arrays[name]
            copies.append((buffer, padded))
        self.device.copy_batch(copies)
