"""one-token-is-a-decode: tells a chunk from a decode by its length."""


class Scheduler:
    def _try_schedule(self, state, budget):
        start = state.num_computed
        query_len = min(state.num_tokens - start, budget)
        try:
            table = self.pool.allocate(state.request.request_id, start + query_len)
        except OutOfBlocks:
            return None
        return ScheduledRequest(
            state=state,
            start=start,
            query_len=query_len,
            block_table=table,
            is_prefill=query_len > 1,
            samples=start + query_len == state.num_tokens,
        )
