"""preempts-the-oldest: whoever has had most of the machine goes first."""


class Scheduler:
    def _preempt_youngest(self):
        state = self.running.pop(0)
        self.pool.free(state.request.request_id)
        state.num_computed = 0
        state.num_preemptions += 1
        self.waiting.appendleft(state)
        return state.request
