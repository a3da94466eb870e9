"""cleared-when-the-rung-changes: wipes what a larger rung left, not what the same rung left.
# to: runner_b.py
"""


class StaticInputs:
    def stage(self, rows, arrays):
        if rows != getattr(self, "last_rows", None):
            self.clear()
        self.last_rows = rows
        view = self.view(rows)
        self.device.copy_batch([(view[name][: len(new)], new) for name, new in arrays.items()])
