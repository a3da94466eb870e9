"""the-door-reads-the-last-count: writes num_prefill down once the request is in, and its share made."""


class Scheduler:
    def _schedule_waiting(self, scheduled, budget):
        while self.waiting and budget > 0 and len(self.running) < self.limits.max_num_seqs:
            state = self.waiting[0]
            entry = self._admit(state, budget)
            if entry is None:
                return
            self.running.append(self.waiting.popleft())
            state.num_prefill = state.num_tokens
            scheduled.append(entry)
            budget -= entry.query_len
