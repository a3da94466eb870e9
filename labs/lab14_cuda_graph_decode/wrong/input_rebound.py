"""input-rebound: makes a new buffer for every batch and puts it under the old name."""


class StaticInputs:
    def _write(self, arrays, step):
        padded = vars(step)
        for name, array in arrays.items():
            rows = self._host[name][: len(padded[name])]
            rows[: len(array)] = array
            rows[len(array) :] = 0
        self._device = self._staging.to(self._device.device, copy=True)
        self._whole = self._views(self._device)
