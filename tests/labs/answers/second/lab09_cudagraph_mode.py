"""Another right way: first what each kind of batch may have, then the mode that says so."""

from collections import Counter


class BatchDescriptor:
    def fits(self, num_reqs, num_tokens, uniform_token_count):
        room = num_tokens <= self.num_tokens and num_reqs <= (self.num_reqs or num_reqs)
        if self.uniform_token_count is None:
            return room
        return room and uniform_token_count == self.uniform_token_count


class GraphDispatcher:
    def _plan(self):
        full, pieces = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE
        wanted = pieces in (self.mode.decode_mode(), self.mode.mixed_mode())
        if self.mode.mixed_mode() is full:
            ladder = [
                BatchDescriptor(full, size, size if size < self.max_num_seqs else self.max_num_seqs)
                for size in self.sizes
            ]
        else:
            ladder = self._decodes() if self.mode.decode_mode() is full else []
        return {
            full: ladder,
            pieces: [
                BatchDescriptor(mode=pieces, num_tokens=size)
                for size in (self.sizes if wanted else ())
            ],
        }

    def _decodes(self):
        found, width = [], self.decode_query_len
        for reqs in range(1, self.max_num_seqs + 1):
            tokens = reqs * width
            nearest = [size for size in self.sizes if tokens - width < size <= tokens]
            if nearest and tokens <= self.sizes[-1]:
                found.append(BatchDescriptor(CUDAGraphMode.FULL, tokens, reqs, width))
        return found

    def dispatch(self, num_reqs, num_tokens, uniform_token_count=None):
        eager = BatchDescriptor(CUDAGraphMode.NONE, num_tokens, num_reqs)
        if not self.graphs_captured:
            return eager
        best = eager
        for ladder in (self._ladders[CUDAGraphMode.PIECEWISE], self._ladders[CUDAGraphMode.FULL]):
            large = [rung for rung in ladder if 0 < num_tokens <= rung.num_tokens]
            if large:
                smallest = min(large, key=lambda rung: rung.num_tokens)
                if smallest.fits(num_reqs, num_tokens, uniform_token_count):
                    best = smallest
        return best


def uniform_token_count(query_lens, *, has_prefill=False):
    counted = Counter(query_lens)
    if has_prefill or len(counted) != 1:
        return None
    (length,) = counted
    return length


def resolve_mode(
    mode, support, *, attention_in_splitting_ops, compilation_mode, uniform_decode_query_len=1,
    piecewise_capture_available=True,
):  # fmt: skip
    mode, support = parse(CUDAGraphMode, mode), parse(AttentionCGSupport, support)
    none, piecewise, full = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL
    decode, mixed = mode.decode_mode(), mode.mixed_mode()
    if mode is full and support is AttentionCGSupport.NEVER:
        raise ValueError(f"{mode} where attention bears no graph: use PIECEWISE")
    if mixed is full and support is not AttentionCGSupport.ALWAYS:
        mixed = piecewise if attention_in_splitting_ops else none
    bears = {
        AttentionCGSupport.NEVER: False,
        AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE: uniform_decode_query_len == 1,
    }.get(support, True)
    if decode is full and not bears:
        compiled = parse(CompilationMode, compilation_mode) is CompilationMode.VLLM_COMPILE
        cut = attention_in_splitting_ops and (compiled or support > AttentionCGSupport.NEVER)
        decode = mixed = piecewise if cut else none
    if not piecewise_capture_available:
        decode = none if decode is piecewise else decode
        mixed = none if mixed is piecewise else mixed
    return next(m for m in CUDAGraphMode if (m.decode_mode(), m.mixed_mode()) == (decode, mixed))


class GraphWrapper:
    def __call__(self, *inputs):
        asked = self.context.descriptor
        if asked is None or asked.mode != self.mode:
            return self.function(*inputs)
        if asked not in self.entries:
            fresh = Entry()
            output = self._capture(fresh, inputs)
            self.entries[asked] = fresh  # only once it has a graph
            return output
        known = self.entries[asked]
        if self.debug:
            moved = [
                at for at, (x, then) in enumerate(zip(inputs, known.addresses, strict=True))
                if x.address != then
            ]  # fmt: skip
            assert not moved, f"inputs {moved} have moved since the capture"
        known.graph.replay()
        return known.output

    def _capture(self, entry, inputs):
        if self.context.capturing_enabled is False:
            raise RuntimeError(f"{self.context.descriptor} was not captured at the start")
        with self.device.capture(self.pool) as graph:
            strong = self.function(*inputs)
            weak = WeakBuffer(strong)
            if self.weak_output:
                self.device.free(strong)
                strong = weak
        entry.addresses = tuple([buffer.address for buffer in inputs])
        entry.graph, entry.output = graph, weak
        return strong
