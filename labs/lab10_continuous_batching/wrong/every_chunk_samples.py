"""every-chunk-samples: whoever ran in a step gets a token from it."""


class Scheduler:
    def _try_schedule(self, state, budget):
        start = state.num_computed
        query_len = min(state.num_tokens - start, budget)
        try:
            table = self.pool.allocate(state.request.request_id, start + query_len)
        except OutOfBlocks:
            return None
        return ScheduledRequest(state, start, query_len, table, start < state.num_prefill, True)
