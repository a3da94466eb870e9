"""position-not-advanced: lengthens the context, and takes the position for a constant of the step."""


class Model:
    def advance(self, inputs, tokens):
        if not len(inputs.input_ids) == len(inputs.context_lens) == len(tokens):
            raise ValueError("advance() feeds back one token a request")
        block_size, end = self.cache.block_size, self.end_of_context(inputs)
        live = (inputs.context_lens > 0).int()
        inputs.input_ids.copy_(tokens * live)
        inputs.context_lens.add_(live).clamp_(max=end)
        last = (inputs.context_lens - live).long()
        blocks = inputs.block_table.gather(1, (last // block_size)[:, None])[:, 0]
        inputs.slot_mapping.copy_(blocks * block_size + last % block_size)
