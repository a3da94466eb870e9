"""An adapter that was loaded after the start is nonsense a step later. All answers are right.

Fault: the graphs were captured with memory that is free for everybody.
"""


class GraphRunner:
    def _record(self, rung):
        with self.device.capture(0, f"graph of {rung}") as graph:
            output = self.forward(rung)
        return graph, output
