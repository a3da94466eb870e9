"""widest-batch-eager: counts the whole requests that a size has room for, rounding down."""


class GraphDispatcher:
    def _uniform_decode_ladder(self):
        query_len = self.decode_query_len
        reqs = sorted({size // query_len for size in self.sizes} - {0})
        return [
            BatchDescriptor(CUDAGraphMode.FULL, n * query_len, n, query_len)
            for n in reqs
            if n <= self.max_num_seqs
        ]
