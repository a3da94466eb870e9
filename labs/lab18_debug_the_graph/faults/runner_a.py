"""pytorch PR 137318: an input is rebound, so that the graph goes on reading the old address."""


class StaticInputs:
    def stage(self, rows: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Copy the batch in, padded with zeros up to `rows`, in one call.

        What a client sends in another type than the model's is converted first.
        """
        copies = []
        for name, buffer in self.view(rows).items():
            given = np.asarray(arrays[name])
            if given.dtype != buffer.dtype:
                whole = np.zeros(self.buffers[name].shape, buffer.dtype)
                whole[: len(given)] = given
                self.buffers[name] = self.device.upload(whole)
                continue
            padded = np.zeros(buffer.shape, buffer.dtype)
            padded[: len(given)] = given
            copies.append((buffer, padded))
        self.device.copy_batch(copies)
