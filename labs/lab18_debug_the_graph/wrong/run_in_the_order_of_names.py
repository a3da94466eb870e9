"""run-in-the-order-of-names: all live ops run, in the order in which the server listed them."""
# to: runner_e.py


class Conductor:
    def written(self, rows):
        with self.device.trace(self.hall) as launches:
            score = Score(self.forward(rows))
        for live, group in groupby(launches, key=lambda launch: launch.label in self.live):
            if live:
                named = sorted(group, key=lambda launch: launch.label)
                score.live[len(score.graphs)] = named
            else:
                score.graphs.append(self.movement(group, f"{len(score.graphs)} of {rows}"))
        return score
