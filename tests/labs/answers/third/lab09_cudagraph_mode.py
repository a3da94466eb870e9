"""A third right way: generators and dictionaries, the table of outcomes read as a table."""

from dataclasses import replace


class BatchDescriptor:
    def fits(self, num_reqs, num_tokens, uniform_token_count):
        if num_tokens > self.num_tokens:
            return False
        if self.num_reqs is not None and num_reqs > self.num_reqs:
            return False
        return self.uniform_token_count is None or self.uniform_token_count == uniform_token_count


class GraphDispatcher:
    def _plan(self):
        ladders = {CUDAGraphMode.FULL: [], CUDAGraphMode.PIECEWISE: []}
        decode, mixed = self.mode.decode_mode(), self.mode.mixed_mode()
        for size in self.sizes:
            if mixed is not CUDAGraphMode.NONE:
                reqs = min(size, self.max_num_seqs) if mixed is CUDAGraphMode.FULL else None
                ladders[mixed].append(BatchDescriptor(mixed, size, reqs))
            if decode is CUDAGraphMode.FULL is not mixed:
                reqs, rest = divmod(size, self.decode_query_len)
                reqs += rest > 0
                rung = BatchDescriptor(decode, reqs * self.decode_query_len, reqs)
                rung = replace(rung, uniform_token_count=self.decode_query_len)
                too_large = reqs > self.max_num_seqs or rung.num_tokens > max(self.sizes)
                if not too_large and rung not in ladders[decode]:
                    ladders[decode].append(rung)
        return ladders

    def dispatch(self, num_reqs, num_tokens, uniform_token_count=None):
        first_of_each = (
            next(
                iter([rung for rung in self._ladders[mode] if rung.num_tokens >= num_tokens]), None
            )
            for mode in (CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE)
        )
        for rung in first_of_each:
            if not (self.graphs_captured and num_tokens):
                break
            if rung is not None and rung.fits(num_reqs, num_tokens, uniform_token_count):
                return rung
        return BatchDescriptor(mode=CUDAGraphMode.NONE, num_tokens=num_tokens, num_reqs=num_reqs)


def uniform_token_count(query_lens, *, has_prefill=False):
    if has_prefill:
        return None
    seen = None
    for length in query_lens:
        if seen is not None and length != seen:
            return None
        seen = length
    return seen


def resolve_mode(
    mode, support, *, attention_in_splitting_ops, compilation_mode, uniform_decode_query_len=1,
    piecewise_capture_available=True,
):  # fmt: skip
    asked = parse(CUDAGraphMode, mode).name
    level = int(parse(AttentionCGSupport, support))
    compiled = parse(CompilationMode, compilation_mode) == 3
    cut = attention_in_splitting_ops and piecewise_capture_available
    if (asked, level) == ("FULL", 0):
        raise ValueError("this backend has no graphs. PIECEWISE is what it can do")
    bears_decodes = level > (1 if uniform_decode_query_len > 1 else 0)
    if asked.startswith("FULL") and not bears_decodes:
        asked = "PIECEWISE" if cut and (compiled or level) else "NONE"
    elif asked == "FULL" and level < 3:
        asked = "FULL_AND_PIECEWISE" if cut else "FULL_DECODE_ONLY"
    if not piecewise_capture_available:
        asked = {"PIECEWISE": "NONE", "FULL_AND_PIECEWISE": "FULL_DECODE_ONLY"}.get(asked, asked)
    return CUDAGraphMode[asked]


class GraphWrapper:
    def __call__(self, *inputs):
        meant = getattr(self.context.descriptor, "mode", None) is self.mode
        if not meant:
            return self.function(*inputs)
        known = self.entries.get(self.context.descriptor)
        if known is not None and known.graph is not None:
            if self.debug:
                for buffer, before in zip(inputs, known.addresses, strict=True):
                    if buffer.address != before:
                        raise AssertionError(f"{buffer.address} is not {before}: copy, do not move")
            known.graph.replay()
            return known.output
        self.entries[self.context.descriptor] = Entry()
        return self._capture(self.entries[self.context.descriptor], inputs)

    def _capture(self, entry, inputs):
        if self.context.capturing_enabled:
            made = []
            with self.device.capture(self.pool, f"{self.context.descriptor}") as graph:
                made.append(self.function(*inputs))
                if self.weak_output:
                    self.device.free(made[0])
            for name, value in (
                ("graph", graph),
                ("output", WeakBuffer(made[0])),
                ("addresses", tuple(buffer.address for buffer in inputs)),
            ):
                setattr(entry, name, value)
            return (made[0], entry.output)[self.weak_output]
        raise RuntimeError("serving: all captures are over")
