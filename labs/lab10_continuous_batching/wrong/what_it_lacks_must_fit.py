"""what-it-lacks-must-fit: asks for room for the tokens that are not computed yet."""


class Scheduler:
    def _may_enter(self, state):
        if not self.limits.reserve_full_isl:
            return True
        lacks = state.num_tokens - state.num_computed
        return self.pool.has_room(state.request.request_id, lacks)
