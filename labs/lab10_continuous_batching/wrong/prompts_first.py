"""prompts-first: finishes prompts before anybody decodes, so that the first token comes early."""


class Scheduler:
    def _schedule_running(self, scheduled, preempted):
        budget = self.limits.max_num_batched_tokens
        for state in sorted(self.running, key=lambda s: s.num_computed >= s.num_prefill):
            entry = None
            while state in self.running and budget > 0 and entry is None:
                entry = self._try_schedule(state, budget)
                if entry is None:
                    preempted.append(self._preempt_youngest())
            if entry is not None:
                scheduled.append(entry)
                budget -= entry.query_len
        return budget
