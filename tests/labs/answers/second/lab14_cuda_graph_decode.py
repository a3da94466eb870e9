"""Another right way: synchronise, take rungs from a list, zero first, select by masks."""

from contextlib import ExitStack


class GraphRunner:
    def _capture_ladder(self):
        report = CaptureReport()
        side = self.stream
        waiting = list(self.rungs)
        while waiting:
            rung = waiting.pop()
            failure = None
            try:
                done = self._capture_rung(rung, side)
            except Exception as error:
                failure = error
            if failure is None:
                report.rungs = [*report.rungs, done]
            elif is_out_of_memory(failure):
                report.dropped = [*report.dropped, rung]
            else:
                raise failure
        return report

    def _warm_up(self, rung, stream):
        self.backend.synchronize()
        with self.backend.stream(stream):
            self.forward(rung)
            stream.synchronize()
        self.backend.synchronize()

    def _record(self, rung, stream):
        with ExitStack() as open_ones:
            pieces = Pieces(self.backend, self.pool, stream)
            open_ones.enter_context(pieces.capture())
            pieces.output = self.forward(rung)
        return pieces


class StaticInputs:
    def _write(self, arrays, step):
        for name, target in vars(step).items():
            self._host[name][: len(target)] = 0
            np.copyto(self._host[name][: len(arrays[name])], arrays[name])
            unreached = self._host[name].size - target.numel()  # at the end: of the block table
        reach = len(self._staging) - unreached
        self._device.narrow(0, 0, reach).copy_(self._staging.narrow(0, 0, reach), True)


class Model:
    def advance(self, inputs, tokens):
        sizes = {len(tokens), len(inputs.input_ids), len(inputs.context_lens)}
        if len(sizes) > 1:
            raise ValueError(f"one token a request, in a decode step; given {sorted(sizes)}")
        end, size = self.end_of_context(inputs), self.cache.block_size
        padded = inputs.context_lens == 0
        position = inputs.context_lens.long().clamp(max=end - 1)
        row = torch.arange(len(tokens), device=tokens.device)
        block = inputs.block_table[row, position // size]
        inputs.context_lens.copy_((position + 1).masked_fill(padded, 0))
        inputs.positions.copy_(position)
        inputs.slot_mapping.copy_((block * size + position % size).masked_fill(padded, 0))
        inputs.input_ids.copy_(torch.where(padded, 0, tokens))

    def decode(self, inputs, attention, steps, sample=greedy):
        table = inputs.input_ids.new_empty(steps, len(inputs.context_lens))
        for step in range(steps):
            hidden = self.body(inputs, attention)
            table[step] = self.next_step(hidden, inputs, sample)[1]
        return table
