"""Users who were silent for a while are answered as if they had repeated their last words.

Fault: padded rows keep what the last larger batch left in them, and write it again.
"""


class StaticInputs:
    def stage(self, rows, arrays):
        view = self.view(rows)
        self.device.copy_batch([(view[name][: len(new)], new) for name, new in arrays.items()])
