"""full-runs-anything: a graph with enough rows runs the batch, whatever kind of batch it is."""


class BatchDescriptor:
    def fits(self, num_reqs, num_tokens, uniform_token_count):
        return num_tokens <= self.num_tokens and (
            self.num_reqs is None or num_reqs <= self.num_reqs
        )
