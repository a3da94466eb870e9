"""above-the-top-is-padded: a batch above the ladder runs as several replays of its top."""

from dataclasses import replace


class GraphDispatcher:
    def dispatch(self, num_reqs, num_tokens, uniform_token_count=None):
        if self.graphs_captured and num_tokens > 0:
            for ladder in self._ladders.values():
                held = [rung for rung in ladder if rung.num_tokens >= num_tokens]
                if held and held[0].fits(num_reqs, num_tokens, uniform_token_count):
                    return held[0]
                if (
                    ladder
                    and not held
                    and ladder[-1].uniform_token_count in (None, uniform_token_count)
                ):
                    top = ladder[-1].num_tokens
                    return replace(ladder[-1], num_tokens=-(-num_tokens // top) * top)
        return BatchDescriptor(CUDAGraphMode.NONE, num_tokens, num_reqs)
