"""live-ops-last: replays the graphs one after another, then runs what resisted capture."""


class PiecewiseGraph:
    def replay(self):
        for graph in self.graphs:
            graph.replay()
        for node in self.live:
            self.device.submit(node)
