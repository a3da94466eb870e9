"""unordered-warm-up: takes a side stream for a place that waits for the others by itself."""


class StaticEngine:
    def capture(self, step):
        began = time.perf_counter()
        static, graph = step.to(self.backend.device), self.backend.CUDAGraph()
        with self.backend.stream(self.stream):
            self.forward(static)
        self.backend.synchronize()
        with no_garbage_collection(), self.backend.graph(graph, pool=self.pool, stream=self.stream):
            tokens = self.forward(static)
        return ShapeGraph(graph, static, tokens, (time.perf_counter() - began) * 1e6)
