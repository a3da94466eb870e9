"""always-greedy: decodes by the most likely token, whatever sampler it is given."""


class Model:
    def decode(self, inputs, attention, steps, sample=greedy):
        written = []
        for _ in range(steps):
            _, tokens = self.next_step(self.body(inputs, attention), inputs)
            written.append(tokens)
        return torch.stack(written)
