"""item-in-capture: looks the next slots up on the host, row by row."""


class Model:
    def advance(self, inputs, tokens):
        if not len(inputs.input_ids) == len(inputs.context_lens) == len(tokens):
            raise ValueError("advance() feeds back one token a request")
        end = self.end_of_context(inputs)
        for row in range(len(tokens)):
            context = int(inputs.context_lens[row])
            if context == 0:
                continue
            position = min(context, end - 1)
            block, inside = divmod(position, self.cache.block_size)
            inputs.input_ids[row] = tokens[row]
            inputs.positions[row] = position
            inputs.context_lens[row] = min(context + 1, end)
            slot = int(inputs.block_table[row, block]) * self.cache.block_size + inside
            inputs.slot_mapping[row] = slot
