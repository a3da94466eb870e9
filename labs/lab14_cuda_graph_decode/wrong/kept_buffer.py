"""kept-buffer: keeps the buffer that each step's tokens were written to, and not the tokens."""


class Model:
    def decode(self, inputs, attention, steps, sample=greedy):
        written = []
        for _ in range(steps):
            self.next_step(self.body(inputs, attention), inputs, sample)
            written.append(inputs.input_ids)
        return torch.stack(written)
