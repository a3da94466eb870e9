"""mended-for-one-input: what users say is converted in place; where it belongs still moves."""
# to: runner_a.py


class Letters:
    def sheet(self, name, rows, letter):
        box = self.boxes[name]
        sheet = np.zeros((rows, *box.shape[1:]), box.dtype)
        sheet[: len(letter)] = letter
        if letter.dtype != box.dtype and name != "x":
            self.boxes[name] = self.device.upload(np.zeros(box.shape, box.dtype))
        return sheet
