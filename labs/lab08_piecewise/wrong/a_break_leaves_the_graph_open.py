"""a-break-leaves-the-graph-open: takes the marked launch out, and goes on in the same graph."""


class BreakableGraph:
    def append(self, node):
        if node.label in self.break_on:
            self.launches.append(node)
        else:
            self.graphs[-1].append(node)
