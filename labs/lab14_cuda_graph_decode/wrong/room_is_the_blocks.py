"""room-is-the-blocks: lets a request go on as long as it has blocks."""


class Model:
    def advance(self, inputs, tokens):
        if not len(inputs.input_ids) == len(inputs.context_lens) == len(tokens):
            raise ValueError("advance() feeds back one token a request")
        block_size = self.cache.block_size
        end = inputs.block_table.shape[1] * block_size
        live = (inputs.context_lens > 0).int()
        inputs.input_ids.copy_(tokens * live)
        inputs.positions.add_(live).clamp_(max=end - 1)
        inputs.context_lens.add_(live).clamp_(max=end)
        positions = inputs.positions.long()
        blocks = inputs.block_table.gather(1, (positions // block_size)[:, None])[:, 0]
        inputs.slot_mapping.copy_(blocks * block_size + positions % block_size)
