"""recaptured-for-every-stranger: an input has moved, so the graphs are captured again. It is right."""
# to: runner_a.py


class Letters:
    moved = False

    def sheet(self, name, rows, letter):
        box = self.boxes[name]
        sheet = np.zeros((rows, *box.shape[1:]), box.dtype)
        sheet[: len(letter)] = letter
        if letter.dtype != box.dtype:
            self.boxes[name] = self.device.upload(np.zeros(box.shape, box.dtype))
            self.moved = True
        return sheet


class Player:
    def run(self, number, letters):
        rows = min((size for size in self.tapes if size >= number), default=None)
        if rows is None:
            raise CaptureError(f"a batch of {number}: the longest tape has {max(self.tapes)} rows")
        self.letters.stage(rows, letters)
        if self.letters.moved:
            self.letters.moved = False
            self.capture()
            boxes = self.letters.boxes
            same = {name: np.asarray(new, boxes[name].dtype) for name, new in letters.items()}
            self.letters.stage(rows, same)
        self.tapes[rows].graph.replay()
        return self.tapes[rows].answers[:number]
