"""a-copy-an-array: copies each array to its place, one after the other."""


class StaticInputs:
    def _write(self, arrays, step):
        padded = vars(step)
        for name, array in arrays.items():
            rows = self._host[name][: len(padded[name])]
            rows[: len(array)] = array
            rows[len(array) :] = 0
            padded[name].copy_(torch.from_numpy(rows), non_blocking=True)
