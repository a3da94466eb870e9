"""cleared-at-one-door: only a replay has rows to fill up, so `run` wipes them before it stages."""
# to: runner_b.py


class Desk:
    def stage(self, rows, batch):
        for name, new in batch.items():
            self.papers[name][: len(new)] = new
        self.send(rows)

    def run(self, number, batch):
        at = bisect_left(self.sizes, number)
        if at == len(self.sizes):
            raise CaptureError(f"{number} rows, recorded are {self.sizes}: run this batch eagerly")
        for paper in self.papers.values():
            paper[number : self.sizes[at]] = 0
        self.stage(self.sizes[at], batch)
        self.recordings[at].replay()
        return self.results[at][:number]
