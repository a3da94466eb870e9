"""largest-rung: every batch fits the largest graph, so that one will do."""


class GraphRunner:
    def rung_for(self, num_rows):
        rung = max(self.graphs, default=0)
        if rung < num_rows:
            raise CaptureError(f"a batch of {num_rows} fits no rung of {sorted(self.graphs)}")
        return rung
