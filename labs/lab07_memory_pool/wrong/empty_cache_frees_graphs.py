"""empty-cache-frees-graphs: a segment without a block in use is nobody's, so it may go."""


class Memory:
    def release_cached(self, pool=None):
        gone = [
            s
            for s in self._segments
            if len(s.blocks) == 1 and s.blocks[0].free and pool in (None, s.pool)
        ]
        for segment in gone:
            self._unmap(segment)
        return sum(s.nbytes for s in gone)
