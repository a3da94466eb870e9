"""A right runner that keeps every claim, and none of what the claims leave open.

Padded rows write into slot 0 what they find. A capture leaves its own numbers in the inputs.
"""


class StaticInputs:
    def clear(self):
        self.device.copy_batch(
            [
                (buffer, np.zeros(buffer.shape, buffer.dtype))
                if name == "slots"
                else (buffer, np.full(buffer.shape, 7, buffer.dtype))
                for name, buffer in self.buffers.items()
            ]
        )

    def stage(self, rows, arrays):
        copies = []
        for name, buffer in self.view(rows).items():
            padded = np.full(buffer.shape, 0 if name == "slots" else 3, buffer.dtype)
            padded[: len(arrays[name])] = arrays[name]
            copies.append((buffer, padded))
        self.device.copy_batch(copies)


class GraphRunner:
    def capture(self, order=None):
        report = CaptureReport()
        for rung in order or sorted(self.ladder.sizes, reverse=True):
            report.rungs.append(self._capture_rung(rung))
        filled = [(b, np.ones(b.shape, b.dtype)) for b in self.inputs.buffers.values()]
        self.device.copy_batch(filled)
        return report
