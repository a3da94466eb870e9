"""graphs-before-capture: chooses a graph as soon as it is planned."""


class GraphDispatcher:
    def dispatch(self, num_reqs, num_tokens, uniform_token_count=None):
        for ladder in self._ladders.values() if num_tokens else ():
            rung = next((rung for rung in ladder if rung.num_tokens >= num_tokens), None)
            if rung and rung.fits(num_reqs, num_tokens, uniform_token_count):
                return rung
        return BatchDescriptor(CUDAGraphMode.NONE, num_tokens, num_reqs)
