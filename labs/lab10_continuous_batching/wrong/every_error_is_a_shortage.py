"""every-error-is-a-shortage: whatever the pool raises, the request has to wait."""


class Scheduler:
    def _try_schedule(self, state, budget):
        start = state.num_computed
        tokens = min(state.num_tokens - start, budget)
        try:
            table = self.pool.allocate(state.request.request_id, start + tokens)
        except Exception:
            return None
        samples = start + tokens == state.num_tokens
        return ScheduledRequest(state, start, tokens, table, start < state.num_prefill, samples)
