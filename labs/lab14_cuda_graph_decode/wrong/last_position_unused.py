"""last-position-unused: stops one short of the end, so that nothing can go over it."""


class Model:
    def advance(self, inputs, tokens):
        if not len(inputs.input_ids) == len(inputs.context_lens) == len(tokens):
            raise ValueError("advance() feeds back one token a request")
        block_size = self.cache.block_size
        end = self.end_of_context(inputs)
        live = (inputs.context_lens > 0).int()
        inputs.input_ids.copy_(tokens * live)
        inputs.positions.add_(live).clamp_(max=end - 2)
        inputs.context_lens.add_(live).clamp_(max=end - 1)
        positions = inputs.positions.long()
        blocks = inputs.block_table.gather(1, (positions // block_size)[:, None])[:, 0]
        inputs.slot_mapping.copy_(blocks * block_size + positions % block_size)
