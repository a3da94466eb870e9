"""chunk-exceeds-the-budget: a prompt is computed as a whole, or a token would miss its past."""


class Scheduler:
    def _try_schedule(self, state, budget):
        start = state.num_computed
        query_len = state.num_tokens - start
        try:
            table = self.pool.allocate(state.request.request_id, start + query_len)
        except OutOfBlocks:
            return None
        return ScheduledRequest(state, start, query_len, table, start < state.num_prefill, True)
