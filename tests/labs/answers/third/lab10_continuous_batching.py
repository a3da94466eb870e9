"""A third right way: slices, exceptions and recursion in the place of loops over an index."""


def usable_blocks(num_blocks):
    return sorted({*range(num_blocks)} - {NULL_BLOCK}, reverse=True)


class BlockPool:
    def allocate(self, request_id, num_tokens):
        held = self.block_table(request_id)
        if not self.has_room(request_id, num_tokens):
            raise OutOfBlocks(self.num_free, "blocks are left")
        more = max(0, self.blocks_for(num_tokens) - len(held))
        taken = [self._free.pop() for _ in range(more)]
        if taken:
            self._tables = {**self._tables, request_id: (*held, *taken)}
        return self.block_table(request_id)


class Scheduler:
    def _try_schedule(self, state, budget):
        lacks = state.num_tokens - state.num_computed
        tokens = lacks if lacks < budget else budget
        try:
            blocks = self.pool.allocate(
                request_id=state.request.request_id, num_tokens=state.num_computed + tokens
            )
        except OutOfBlocks:
            blocks = None
        return (
            ScheduledRequest(
                state=state,
                start=state.num_computed,
                query_len=tokens,
                block_table=blocks,
                is_prefill=state.num_prefill - state.num_computed > 0,
                samples=lacks <= budget,
            )
            if blocks
            else None
        )

    def _may_enter(self, state):
        request_id, known = state.request.request_id, state.num_tokens
        return self.pool.has_room(request_id, known) or not self.limits.reserve_full_isl

    def _preempt_youngest(self):
        youngest = self.running[-1]
        self.waiting.insert(0, youngest)
        del self.running[-1]
        youngest.num_computed -= youngest.num_computed
        youngest.num_preemptions += 1
        self.pool.free(youngest.request.request_id)
        return youngest.request

    def _schedule_running(self, scheduled, preempted):
        return self._from(0, self.limits.max_num_batched_tokens, scheduled, preempted)

    def _from(self, index, budget, scheduled, preempted):
        if budget == 0 or index >= len(self.running):
            return budget
        entry = self._try_schedule(self.running[index], budget)
        if entry is None:
            preempted.append(self._preempt_youngest())
            return self._from(index, budget, scheduled, preempted)
        scheduled.append(entry)
        return self._from(index + 1, budget - entry.query_len, scheduled, preempted)

    def _schedule_waiting(self, scheduled, budget):
        free_seats = self.limits.max_num_seqs - len(self.running)
        for state in list(self.waiting)[: max(free_seats, 0)]:
            state.num_prefill = state.num_tokens
            if budget < 1 or (entry := self._admit(state, budget)) is None:
                break
            budget -= entry.query_len
            scheduled += [entry]
            self.waiting.remove(state)
            self.running.append(state)
