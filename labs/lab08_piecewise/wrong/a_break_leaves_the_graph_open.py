"""a-break-leaves-the-graph-open: takes the marked launch out, and goes on in the same graph."""


class _CutAtBreaks:
    def _append(self, node):
        if node.label in self.break_on:
            self.cut.segments.append(node)
        else:
            super()._append(node)
