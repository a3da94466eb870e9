"""small-requests-overtake: passes over a request that finds no blocks, and admits the next."""


class Scheduler:
    def _schedule_waiting(self, scheduled, budget):
        for state in list(self.waiting):
            if budget == 0 or len(self.running) == self.limits.max_num_seqs:
                return
            state.num_prefill = state.num_tokens
            entry = self._admit(state, budget)
            if entry is not None:
                self.waiting.remove(state)
                self.running.append(state)
                scheduled.append(entry)
                budget -= entry.query_len
