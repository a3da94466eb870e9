"""next-step-by-hand: samples and advances in two calls, past what the model does in one."""


class Model:
    def decode(self, inputs, attention, steps, sample=greedy):
        written = []
        for _ in range(steps):
            _, tokens = self.head(self.body(inputs, attention), inputs, sample)
            self.advance(inputs, tokens)
            written.append(tokens)
        return torch.stack(written)
