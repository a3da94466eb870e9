"""victim-keeps-its-blocks: takes the request off the running list, and that is all it takes."""


class Scheduler:
    def _preempt_youngest(self):
        state = self.running.pop()
        state.num_computed = 0
        state.num_preemptions += 1
        self.waiting.appendleft(state)
        return state.request
