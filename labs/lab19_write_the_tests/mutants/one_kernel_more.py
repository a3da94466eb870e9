"""Answers are right, one graph a step. Yet a step takes a launch longer than the graph does.

Fault: a kernel is launched beside the graph, to round the answers, which are round.
"""

from mini_engine.sim.kernels import scale


class GraphRunner:
    def run_at(self, rung, num_rows, arrays):
        self.inputs.stage(rung, arrays)
        self.graphs[rung].replay()
        if isinstance(self.graphs[rung], Graph):
            self.device.launch(scale, self.outputs[rung], self.outputs[rung], by=1.0)
        return self.outputs[rung][:num_rows]
