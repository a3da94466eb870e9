"""a-break-runs-twice: records every launch, and keeps the marked ones to be run live as well."""


class BreakableGraph:
    def append(self, node):
        self.graphs[-1].append(node)
        if node.label in self.break_on:
            self.launches += [node, Graph(self.device, self.pool, self.name)]
