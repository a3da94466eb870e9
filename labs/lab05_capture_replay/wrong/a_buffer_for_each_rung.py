"""a-buffer-for-each-rung: every shape wants inputs of its own."""


class StaticInputs:
    def view(self, rows):
        return {
            name: self.device.empty((rows, *buffer.shape[1:]), buffer.dtype.str)
            for name, buffer in self.buffers.items()
        }
