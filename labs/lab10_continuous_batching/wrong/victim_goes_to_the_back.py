"""victim-goes-to-the-back: queues the victim behind everybody who waits."""


class Scheduler:
    def _preempt_youngest(self):
        state = self.running.pop()
        self.pool.free(state.request.request_id)
        state.num_computed = 0
        state.num_preemptions += 1
        self.waiting.append(state)
        return state.request
