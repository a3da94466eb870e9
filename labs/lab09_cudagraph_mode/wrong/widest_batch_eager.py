"""widest-batch-eager: counts the whole requests that a size has room for, rounding down."""


class GraphDispatcher:
    def _plan(self):
        full, pieces, width = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE, self.decode_query_len
        ladders = {full: [], pieces: []}
        if self.mode.has_piecewise_cudagraphs():
            ladders[pieces] = [BatchDescriptor(pieces, size) for size in self.sizes]
        if self.mode is full:
            ladders[full] = [
                BatchDescriptor(full, size, min(size, self.max_num_seqs)) for size in self.sizes
            ]
        elif self.mode.has_full_cudagraphs():
            ladders[full] = [
                BatchDescriptor(full, n * width, n, width)
                for n in sorted({size // width for size in self.sizes} - {0})
                if n <= self.max_num_seqs
            ]
        return ladders
