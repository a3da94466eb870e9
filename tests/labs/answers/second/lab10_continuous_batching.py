"""Another right way: the highest block first, block by block, looking before taking."""


def usable_blocks(num_blocks):
    return [block for block in range(num_blocks) if block != NULL_BLOCK]


class BlockPool:
    def allocate(self, request_id, num_tokens):
        table = list(self._tables.get(request_id, ()))
        needed = self.blocks_for(num_tokens)
        if needed - len(table) > self.num_free:
            raise OutOfBlocks(f"{request_id!r} wants {needed} blocks: preempt a request first")
        while len(table) < needed:
            table.append(self._free.pop())
        if table:
            self._tables[request_id] = tuple(table)
        return tuple(table)


class Scheduler:
    def _try_schedule(self, state, budget):
        request_id = state.request.request_id
        stop = min(state.num_tokens, state.num_computed + budget)
        if not self.pool.has_room(request_id, stop):
            return None
        return ScheduledRequest(
            state,
            state.num_computed,
            stop - state.num_computed,
            self.pool.allocate(request_id, stop),
            not state.num_computed >= state.num_prefill,
            stop >= state.num_tokens,
        )

    def _may_enter(self, state):
        known = state.num_tokens if self.limits.reserve_full_isl else 0
        return self.pool.has_room(state.request.request_id, known)

    def _preempt_youngest(self):
        *self.running, victim = self.running
        victim.num_computed, victim.num_preemptions = 0, victim.num_preemptions + 1
        self.pool.free(victim.request.request_id)
        self.waiting = deque([victim, *self.waiting])
        return victim.request

    def _schedule_running(self, scheduled, preempted):
        budget = self.limits.max_num_batched_tokens
        for state in tuple(self.running):
            while budget and state in self.running:
                entry = self._try_schedule(state, budget)
                if entry is not None:
                    scheduled.append(entry)
                    budget -= entry.query_len
                    break
                preempted.append(self._preempt_youngest())
        return budget

    def _schedule_waiting(self, scheduled, budget):
        seats = self.limits.max_num_seqs - len(self.running)
        admitted = []
        for state in list(self.waiting)[:seats]:
            if not budget:
                break
            state.num_prefill = len(state.request.prompt) + len(state.output)
            entry = self._admit(state, budget)
            if entry is None:
                break
            admitted.append(state)
            scheduled.append(entry)
            budget -= entry.query_len
        self.running += admitted
        for _ in admitted:
            self.waiting.popleft()
