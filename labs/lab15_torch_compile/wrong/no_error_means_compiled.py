"""no-error-means-compiled: where nothing was compiled anew, takes it that older code was reused."""


class Call:
    @property
    def how(self):
        return "compiled" if self.graphs else "reused"
