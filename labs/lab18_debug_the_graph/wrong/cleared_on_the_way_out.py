"""cleared-on-the-way-out: each replay tidies up behind itself; an eager step leaves its rows."""
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
        self.stage(self.sizes[at], batch)
        self.recordings[at].replay()
        for paper in self.papers.values():
            paper.fill(0)
        return self.results[at][:number]
