"""ended-rows-go-on: lets every row take its next column, as the graph runs them all anyway."""


class StaticEngine:
    def _serve(self, requests, told):
        states = [RequestState(request) for request in requests]
        contexts = [len(request.prompt) for request in requests]
        step = prompt_step([request.prompt for request in requests], self.cache.t_max)
        while True:
            sampled = self.run(step).tolist()
            for row, (state, token) in enumerate(zip(states, sampled, strict=True)):
                if state.finish_reason is None:
                    state.output.append(token)
                    state.finish_reason = state.request.ends_with(token, len(state.output))
                    told(row, token)
            if all(state.finish_reason for state in states):
                return states
            contexts = [context + 1 for context in contexts]
            step = decode_step(sampled, contexts, self.cache.t_max)
