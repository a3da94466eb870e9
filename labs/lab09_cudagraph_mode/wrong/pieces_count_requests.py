"""pieces-count-requests: captures pieces for a number of requests, as if attention were inside."""


class GraphDispatcher:
    def _piecewise_ladder(self):
        if not self.mode.has_piecewise_cudagraphs():
            return []
        return [
            BatchDescriptor(CUDAGraphMode.PIECEWISE, size, num_reqs=min(size, self.max_num_seqs))
            for size in self.sizes
        ]
