"""victim-keeps-its-place: lets the request go on later where it stopped."""


class Scheduler:
    def _preempt_youngest(self):
        state = self.running.pop()
        self.pool.free(state.request.request_id)
        state.num_preemptions += 1
        self.waiting.appendleft(state)
        return state.request
