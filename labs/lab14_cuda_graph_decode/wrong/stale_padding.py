"""stale-padding: writes the rows of the batch, and leaves the others as they were."""


class StaticInputs:
    def _write(self, arrays, step):
        for name, array in arrays.items():
            self._host[name][: len(array)] = array
        self._device.copy_(self._staging, non_blocking=True)
