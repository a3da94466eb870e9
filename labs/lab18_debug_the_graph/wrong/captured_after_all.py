"""captured-after-all: one live op stays between two graphs; those before it become a graph."""
# to: runner_e.py


class Conductor:
    def written(self, rows):
        with self.device.trace(self.hall) as launches:
            score = Score(self.forward(rows))
        for live, group in groupby(launches, key=lambda launch: launch.label in self.live):
            inside = list(group)
            last = [inside.pop()] if live else []
            if inside:
                score.graphs.append(self.movement(inside, f"of {rows}"))
            score.live[len(score.graphs)] = last
        return score
