"""a-resumed-request-decodes: prefill is the prompt, and what it wrote itself is decode."""


class Scheduler:
    def _schedule_waiting(self, scheduled, budget):
        while self.waiting and budget > 0 and len(self.running) < self.limits.max_num_seqs:
            state = self.waiting[0]
            state.num_prefill = len(state.request.prompt)
            entry = self._admit(state, budget)
            if entry is None:
                return
            self.running.append(self.waiting.popleft())
            scheduled.append(entry)
            budget -= entry.query_len
