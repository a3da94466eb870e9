"""scales-are-free: rounds the number of groups down, so that a short last group has no scale."""


class Quant:
    def matrix_bytes(self, outputs, inputs):
        groups = max(1, inputs // self.group) if self.group else 1
        return outputs * (inputs * self.bits / 8 + groups * self.scale_bytes)
