"""two-are-not-three: keeps the first and the last op of a piece, which are all when there are two."""
# to: runner_e.py


class Conductor:
    def written(self, rows):
        with self.device.trace(self.hall) as launches:
            score = Score(self.forward(rows))
        for live, group in groupby(launches, key=lambda launch: launch.label in self.live):
            if live:
                inside = list(group)
                score.live[len(score.graphs)] = inside[:1] + inside[1:][-1:]
            else:
                score.graphs.append(self.movement(group, f"{len(score.graphs)} of {rows}"))
        return score
