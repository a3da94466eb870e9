"""a-break-runs-twice: records every launch, and keeps the marked ones to be run live as well."""


class _CutAtBreaks:
    def _append(self, node):
        super()._append(node)
        if node.label in self.break_on:
            self.graphs.append(Graph(self.device, self.pool, self.graphs[0].name))
            self.cut.segments += [node, self.graphs[-1]]
