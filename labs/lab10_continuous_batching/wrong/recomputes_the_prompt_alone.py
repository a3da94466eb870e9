"""recomputes-the-prompt-alone: a request is its prompt, and then one token a step."""


class Scheduler:
    def _try_schedule(self, state, budget):
        start = state.num_computed
        known = max(len(state.request.prompt), start + 1)
        query_len = min(known - start, budget)
        try:
            table = self.pool.allocate(state.request.request_id, start + query_len)
        except OutOfBlocks:
            return None
        samples = start + query_len == known
        return ScheduledRequest(state, start, query_len, table, start < state.num_prefill, samples)
