"""Two users got each other's answer. What each of them had said was counted rightly.

Fault: sorts the rows by slot, and gives the answers back in that order.
"""


class GraphRunner:
    def run_at(self, rung, num_rows, arrays):
        order = np.argsort(arrays["slots"], kind="stable")
        self.inputs.stage(rung, {name: np.asarray(new)[order] for name, new in arrays.items()})
        self.graphs[rung].replay()
        return self.outputs[rung][:num_rows]
