"""blocks-for-the-longest-answer: takes all blocks that the request may ever need, to be safe."""


class Scheduler:
    def _try_schedule(self, state, budget):
        start, request = state.num_computed, state.request
        query_len = min(state.num_tokens - start, budget)
        longest = len(request.prompt) + request.max_new_tokens - 1
        try:
            table = self.pool.allocate(request.request_id, longest)
        except OutOfBlocks:
            return None
        samples = start + query_len == state.num_tokens
        return ScheduledRequest(state, start, query_len, table, start < state.num_prefill, samples)
