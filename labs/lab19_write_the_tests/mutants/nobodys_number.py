"""Too many users came, and the log says no more than that. How many? Nobody can tell any more.

Fault: the refusal names the largest size, and not the number of users.
"""


class GraphRunner:
    def rung_for(self, num_rows):
        rung = next((r for r in sorted(self.graphs) if r >= num_rows), None)
        if rung is None:
            raise CaptureError(f"the batch is larger than {max(self.graphs)}: run it eagerly")
        return rung
