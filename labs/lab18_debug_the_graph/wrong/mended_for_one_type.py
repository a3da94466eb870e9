"""mended-for-one-type: converts whole numbers, which the incident was about; others still rebind."""
# to: runner_a.py


class Letters:
    def sheet(self, name, rows, letter):
        box = self.boxes[name]
        sheet = np.zeros((rows, *box.shape[1:]), box.dtype)
        sheet[: len(letter)] = letter
        if letter.dtype != box.dtype and letter.dtype != np.int64:
            self.boxes[name] = self.device.upload(np.zeros(box.shape, box.dtype))
        return sheet
