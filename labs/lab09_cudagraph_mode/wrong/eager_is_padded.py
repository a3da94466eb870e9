"""eager-is-padded: rounds every batch up to a size of the ladder, those without a graph too."""


class GraphDispatcher:
    def dispatch(self, num_reqs, num_tokens, uniform_token_count=None):
        padded = next((size for size in self.sizes if size >= num_tokens > 0), num_tokens)
        if self.graphs_captured and num_tokens > 0:
            for ladder in self._ladders.values():
                rung = next((rung for rung in ladder if rung.num_tokens >= num_tokens), None)
                if rung and rung.fits(num_reqs, num_tokens, uniform_token_count):
                    return rung
        return BatchDescriptor(CUDAGraphMode.NONE, padded, num_reqs)
