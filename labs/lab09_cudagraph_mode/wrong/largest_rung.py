"""largest-rung: every batch that a graph can hold runs in the largest one."""


class GraphDispatcher:
    def dispatch(self, num_reqs, num_tokens, uniform_token_count=None):
        if self.graphs_captured and num_tokens > 0:
            for ladder in self._ladders.values():
                if ladder and ladder[-1].fits(num_reqs, num_tokens, uniform_token_count):
                    return ladder[-1]
        return BatchDescriptor(CUDAGraphMode.NONE, num_tokens, num_reqs)
