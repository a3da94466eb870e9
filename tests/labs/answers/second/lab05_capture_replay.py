"""Another right way: host batches made by concatenation, a capture begun and ended by hand."""

from contextlib import ExitStack


class StaticInputs:
    def view(self, rows):
        starts = {}
        for name in self.buffers:
            whole = self.buffers[name]
            starts[name] = whole if rows == len(whole) else whole[0:rows]
        return starts

    def stage(self, rows, arrays):
        view = self.view(rows)
        whole = {}
        for name in sorted(view):
            given = np.asarray(arrays[name], view[name].dtype)
            rest = np.zeros((len(view[name]) - len(given), *given.shape[1:]), given.dtype)
            whole[name] = np.concatenate([given, rest])
        self.device.copy_batch([(view[name], whole[name]) for name in whole])


class GraphRunner:
    def _warm_up(self, rung):
        nothing = {
            name: np.zeros((0, *buffer.shape[1:]), buffer.dtype)
            for name, buffer in self.inputs.buffers.items()
        }
        self.inputs.stage(rung, nothing)  # no rows: all of them padding
        with ExitStack() as stack:
            stack.enter_context(self.device.allocating_from(self.pool))
            output = self.forward(rung)
            stack.callback(self.device.free, output)
            self.device.read(output)  # which waits for the GPU

    def _record(self, rung):
        capture = self.device.capture(self.pool, f"{rung} rows")
        graph = capture.__enter__()
        try:
            output = self.forward(rung)
        except BaseException as error:
            capture.__exit__(type(error), error, error.__traceback__)
            raise
        capture.__exit__(None, None, None)
        return graph, output

    def rung_for(self, num_rows):
        fitting = [rung for rung in self.graphs if rung >= num_rows]
        if not fitting:
            raise CaptureError(f"{num_rows} rows, and graphs of {sorted(self.graphs)} only")
        return min(fitting)

    def run_at(self, rung, num_rows, arrays):
        graph, output = self.graphs[rung], self.outputs[rung]
        self.inputs.stage(rung, arrays)
        graph.replay()
        return output if len(output) <= num_rows else output[:num_rows]
