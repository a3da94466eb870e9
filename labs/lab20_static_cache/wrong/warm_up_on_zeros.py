"""warm-up-on-zeros: warms up on an empty step, since a capture needs shapes and no tokens."""


class StaticEngine:
    def capture(self, step):
        static, graph = step.to(self.backend.device), self.backend.CUDAGraph()
        for tensor in vars(static).values():
            tensor.zero_()
        self.stream.wait_stream(self.backend.current_stream())
        with self.backend.stream(self.stream):
            self.forward(static)
        self.backend.current_stream().wait_stream(self.stream)
        self.backend.synchronize()
        with no_garbage_collection(), self.backend.graph(graph, pool=self.pool, stream=self.stream):
            tokens = self.forward(static)
        return ShapeGraph(graph, static, tokens, 1.0)
