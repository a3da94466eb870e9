"""a-kernel-left-outside: closes a graph at each splitting op, and none at the end (cf. tvm 15839)."""


class PiecewiseGraphRunner:
    def _record(self, rung):
        with self.device.trace(self.pool) as nodes:
            output = self.forward(rung)
        whole, waiting = PiecewiseGraph(self.device), []
        for node in nodes:
            if node.label not in self.splitting_ops:
                waiting.append(node)
                continue
            if waiting:
                with self.device.capture(self.pool, f"piece of {rung}") as graph:
                    for earlier in waiting:
                        self.device.submit(earlier)
                whole.launches.append(graph)
                waiting = []
            whole.launches.append(node)
        return whole, output
