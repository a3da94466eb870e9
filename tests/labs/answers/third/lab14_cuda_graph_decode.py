"""A third right way: events, the capture by hand, recursion, the end by address, row by row."""


class GraphRunner:
    def _warm_up(self, rung, stream):
        stream.wait_event(self.backend.current_stream().record_event())
        done = self.backend.Event()
        with self.backend.stream(stream):
            self.forward(rung)
            done.record()
        done.synchronize()

    def _record(self, rung, stream):
        made = Pieces(self.backend, self.pool, stream)
        capture = made.capture()
        capture.__enter__()
        try:
            made.output = self.forward(rung)
        except BaseException as error:
            capture.__exit__(type(error), error, error.__traceback__)
            raise
        capture.__exit__(None, None, None)
        return made

    def _capture_ladder(self, check):
        stream = self.stream
        taken, without = [], []

        def down_from(at):
            if at < 0:
                return
            check()
            rung = self.rungs[at]
            try:
                taken.append(self._capture_rung(rung, stream))
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if is_out_of_memory(error):
                    without.append(rung)
                else:
                    raise RuntimeError(f"rung {rung} cannot be captured: {error}") from error
            down_from(at - 1)

        down_from(len(self.rungs) - 1)
        report = CaptureReport()
        report.rungs.extend(taken)
        report.dropped.extend(without)
        return report


class StaticInputs:
    def _write(self, arrays, step):
        base = self._device.data_ptr()
        table = step.block_table
        end = (table.data_ptr() - base) // 4 + table.numel()
        for name, array in arrays.items():
            size = len(getattr(step, name))
            missing = [(0, size - len(array))] + [(0, 0)] * (array.ndim - 1)
            self._host[name][:size] = np.pad(array, missing)
        self._device[:end].copy_(self._staging[:end], non_blocking=True)


class Model:
    def advance(self, inputs, tokens):
        rows = inputs.context_lens.shape[0]
        if tokens.shape[0] != rows or inputs.input_ids.shape[0] != rows:
            raise ValueError("a prompt has no next step: sample first")
        last = self.end_of_context(inputs) - 1
        for row in range(rows):  # no shape and no branch depends on what the device holds
            one = slice(row, row + 1)
            context = inputs.context_lens[one]
            live = context.clamp(max=1)
            at = context.clamp(max=last) * live
            block = inputs.block_table[row].index_select(0, at // self.cache.block_size)
            slot = (block * self.cache.block_size + at % self.cache.block_size) * live
            inputs.slot_mapping[one] = slot
            inputs.positions[one] = at
            inputs.context_lens[one] = (at + 1) * live
            inputs.input_ids[one] = tokens[one] * live

    def decode(self, inputs, attention, steps, sample=greedy):
        if not steps:
            return inputs.input_ids.new_empty(0, len(inputs.context_lens))
        _, tokens = self.next_step(self.body(inputs, attention), inputs, sample)
        return torch.cat([tokens[None], self.decode(inputs, attention, steps - 1, sample)])
