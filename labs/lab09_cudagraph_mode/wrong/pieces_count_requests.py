"""pieces-count-requests: captures pieces for a number of requests, as if attention were inside."""


class GraphDispatcher:
    def _plan(self):
        full, pieces, width = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE, self.decode_query_len
        any_batch = [(size, min(size, self.max_num_seqs)) for size in self.sizes]
        whole = [
            BatchDescriptor(full, n * width, n, width)
            for n in sorted({-(-size // width) for size in self.sizes})
            if n <= self.max_num_seqs and n * width <= self.sizes[-1]
        ]
        ladders = {full: [], pieces: []}
        if self.mode.has_full_cudagraphs():
            mixed = [BatchDescriptor(full, size, reqs) for size, reqs in any_batch]
            ladders[full] = whole if self.mode.separate_routine() else mixed
        if self.mode.has_piecewise_cudagraphs():
            ladders[pieces] = [BatchDescriptor(pieces, size, reqs) for size, reqs in any_batch]
        return ladders
