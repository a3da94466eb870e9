"""backend-is-called-to-compute: runs the graph when it is handed over, and returns the result."""


class Watch:
    def __call__(self, graph, example_inputs):
        self.graphs.append(graph)
        recorder = OpRecorder()
        with recorder:
            results = graph.forward(*example_inputs)
        self.ran.append(tuple(op.name for op in recorder.ops))
        return lambda *inputs: results
