"""cleared-when-the-rung-changes: wipes what a larger rung left, not what the same rung left."""
# to: runner_b.py


class Desk:
    last = 0

    def stage(self, rows, batch):
        for name, new in batch.items():
            if rows != self.last:
                self.papers[name].fill(0)
            self.papers[name][: len(new)] = new
        self.last = rows
        self.send(rows)
