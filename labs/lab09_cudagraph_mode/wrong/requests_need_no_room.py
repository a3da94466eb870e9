"""requests-need-no-room: a graph with enough rows, and of the right kind, holds the batch."""


class BatchDescriptor:
    def fits(self, num_reqs, num_tokens, uniform_token_count):
        return num_tokens <= self.num_tokens and self.uniform_token_count in (
            None,
            uniform_token_count,
        )
