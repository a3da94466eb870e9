"""A third right way: padded by torch, sums by einsum, heads repeated, events, counted by rows."""


def prompt_step(prompts, t_max):
    texts = [torch.tensor(prompt, dtype=torch.int32) for prompt in prompts]
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=1)
    rows, width = ids.shape
    place = torch.cumsum(torch.ones_like(ids), 1, dtype=torch.int32) - 1
    first = torch.arange(0, rows * t_max, t_max, dtype=torch.int32).unsqueeze(1)
    lengths = torch.tensor([*map(len, prompts)], dtype=torch.int32)
    last = torch.arange(-1, rows * width - 1, width, dtype=torch.int32) + lengths
    padding = place.unsqueeze(1) >= lengths[:, None, None]
    later = torch.triu(torch.ones(width, width, dtype=torch.bool), 1)
    return MaskedStep(ids, place, first + place, lengths, last, ~(later | padding))


def decode_step(tokens, contexts, t_max):
    b = len(tokens)
    step = MaskedStep(
        *(torch.empty(b, 1, dtype=torch.int32) for _ in range(3)),
        *(torch.empty(b, dtype=torch.int32) for _ in range(2)),
        torch.zeros(b, 1, t_max, dtype=torch.bool),
    )
    for row, (token, context) in enumerate(zip(tokens, contexts, strict=True)):
        at = context - 1 if context else 0
        step.input_ids[row, 0], step.positions[row, 0] = token, at
        step.slots[row, 0] = row * t_max + at
        step.context_lens[row], step.last_rows[row] = context, row
        step.mask[row, 0].narrow(0, 0, context).fill_(True)
    return step


class MaskedStep:
    @property
    def key(self):
        return (*self.input_ids.size(), self.mask.shape[2])


class MaskedAttention:
    def attend(self, q, keys, values, scales):
        if scales is not None:
            raise ValueError("no scales here")
        b, queries, columns = self.mask.shape
        heads = q.shape[1]
        group = heads // keys.shape[2]
        k = keys[:b, :columns].repeat_interleave(group, dim=2)
        seen = self.mask.sum(1)[:, :, None, None] > 0
        v = torch.where(seen, values[:b, :columns], values.new_zeros(())).repeat_interleave(
            group, 2
        )
        scores = torch.einsum("bqhd,bkhd->bhqk", q.reshape(b, queries, heads, -1), k)
        scores = scores.float() / q.shape[2] ** 0.5
        hidden = self.mask.logical_not()[:, None]
        highest = scores.masked_fill(hidden, -3e38).amax(-1, keepdim=True)
        terms = torch.where(hidden, 0.0, (scores - highest).exp())
        weights = terms / terms.sum(-1, keepdim=True).clamp(min=1e-30)
        return torch.einsum("bhqk,bkhd->bqhd", weights.to(q.dtype), v).reshape_as(q)


class StaticEngine:
    def run(self, step):
        if self.eager:
            return self.forward(step.to(self.backend.device))
        try:
            found = self.graphs[step.key]
        except KeyError:
            found = self.graphs[step.key] = self.capture(step)
            found.graph.replay()
            return found.tokens
        pairs = zip(vars(step).items(), vars(found.step).items(), strict=True)
        for (_, new), (_, static) in pairs:
            static[...] = new
        found.graph.replay()
        return found.tokens

    def capture(self, step):
        start = time.perf_counter_ns()
        inputs = step.to(self.backend.device)
        self.stream.wait_event(self.backend.current_stream().record_event())
        with self.backend.stream(self.stream):
            self.forward(inputs)
            ready = self.stream.record_event()
        ready.synchronize()
        made = self.backend.CUDAGraph()
        with no_garbage_collection(), self.backend.graph(made, pool=self.pool, stream=self.stream):
            out = self.forward(inputs)
        return ShapeGraph(
            graph=made, step=inputs, tokens=out, took_us=(time.perf_counter_ns() - start) / 1000
        )

    def check(self, request):
        room = self.cache.t_max - len(request.prompt)
        if not request.prompt:
            raise ValueError("an empty prompt")
        if request.max_new_tokens not in range(1, room + 1):
            raise ValueError(f"room for {room}, asked for {request.max_new_tokens}")

    def _serve(self, requests, told):
        states = [RequestState(request) for request in requests]

        def takes(row, token):
            state = states[row]
            state.output.append(token)
            told(row, token)
            state.finish_reason = state.request.ends_with(token, len(state.output))

        step = prompt_step([request.prompt for request in requests], self.cache.t_max)
        while step is not None:
            tokens = self.run(step).tolist()
            for row, state in enumerate(states):
                if not state.finish_reason:
                    takes(row, tokens[row])
            contexts = [state.num_tokens * (not state.finish_reason) for state in states]
            step = decode_step(tokens, contexts, self.cache.t_max) if any(contexts) else None
        return states


def columns_of_batch(requests, t_max):
    longest = max(answer for _, answer in requests)
    read = MaskedColumns(0, 0, 0)
    for prompt, answer in requests:
        first, last = prompt + 1, prompt + answer - 1
        texts = (first + last) * (answer - 1) // 2
        read += MaskedColumns(texts, (answer - 1) * t_max - texts, (longest - answer) * t_max)
    return read
