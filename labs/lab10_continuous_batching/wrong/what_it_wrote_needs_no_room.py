"""what-it-wrote-needs-no-room: reserves blocks for the prompt, whoever comes."""


class Scheduler:
    def _may_enter(self, state):
        if not self.limits.reserve_full_isl:
            return True
        return self.pool.has_room(state.request.request_id, len(state.request.prompt))
