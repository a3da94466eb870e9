"""ladder-is-not-graphs: asks the ladder which graph there is, though a rung may have been dropped."""


class GraphRunner:
    def rung_for(self, num_rows):
        rung = self.ladder.rung(num_rows)
        if rung is None or not self.graphs:
            raise CaptureError(f"a batch of {num_rows} fits no rung of {sorted(self.graphs)}")
        return rung
