"""Another right way: loops over rows, a mask from comparisons, additive attention row by row."""


def prompt_step(prompts, t_max):
    width = len(max(prompts, key=len))
    shape = len(prompts), width
    ids, positions, slots = (torch.zeros(shape, dtype=torch.int32) for _ in range(3))
    lengths, last = [], []
    for row, prompt in enumerate(prompts):
        for column in range(width):
            ids[row, column] = prompt[column] if column < len(prompt) else prompt[-1]
            positions[row, column] = column
            slots[row, column] = row * t_max + column
        lengths.append(len(prompt))
        last.append(row * width + len(prompt) - 1)
    seen = positions[:, None, :] <= positions[:, :, None]
    both = [torch.tensor(x, dtype=torch.int32) for x in (lengths, last)]
    return MaskedStep(ids, positions, slots, *both, seen)


def decode_step(tokens, contexts, t_max):
    rows = len(tokens)
    positions = [max(context - 1, 0) for context in contexts]
    slots = [[t_max * row + (p if contexts[row] else t_max - 1)] for row, p in enumerate(positions)]
    mask = torch.zeros(rows, 1, t_max, dtype=torch.bool)
    for row, context in enumerate(contexts):
        mask[row, :, :context] = True
    made = [
        [[t] for t in tokens],
        [[p] for p in positions],
        slots,
        list(contexts),
        list(range(rows)),
    ]
    return MaskedStep(*(torch.tensor(x, dtype=torch.int32) for x in made), mask)


class MaskedStep:
    @property
    def key(self):
        rows, queries = self.input_ids.shape
        return queries, self.mask.size(-1), rows


class MaskedAttention:
    def attend(self, q, keys, values, scales):
        if scales is not None:
            raise ValueError("scales: not this cache")
        rows, queries, columns = self.mask.shape
        heads, head_dim = q.shape[1:]
        each = heads // keys.shape[2]
        out = []
        for row in range(rows):
            mine = q[row * queries : (row + 1) * queries].transpose(0, 1)
            k, v = (
                x[row, :columns].repeat_interleave(each, 1).transpose(0, 1) for x in (keys, values)
            )
            nobody = self.mask[row].sum(0) == 0
            v = torch.where(nobody[None, :, None], torch.zeros_like(v), v)
            scores = mine @ k.transpose(1, 2) / head_dim**0.5
            scores = torch.where(self.mask[row], scores, torch.full_like(scores, -1e30))
            out.append((scores.softmax(-1) @ v).transpose(0, 1))
        return torch.cat(out).reshape(q.shape)


class StaticEngine:
    def run(self, step):
        here = self.backend.device
        if self.eager:
            return self.forward(step.to(here))
        graph = self.graphs.get(step.key)
        if graph is None:
            graph = self.graphs.setdefault(step.key, self.capture(step))
        for name in vars(step):
            getattr(graph.step, name).copy_(getattr(step, name))
        graph.graph.replay()
        return graph.tokens

    def capture(self, step):
        began = time.monotonic()
        static = step.to(self.backend.device)
        self.backend.synchronize()
        with self.backend.stream(self.stream):
            self.forward(static)
            self.stream.synchronize()
        graph = self.backend.CUDAGraph()
        with no_garbage_collection():
            with self.backend.graph(graph, pool=self.pool, stream=self.stream):
                tokens = self.forward(static)
        return ShapeGraph(graph, static, tokens, 1e6 * (time.monotonic() - began) + 1)

    def check(self, request):
        sizes = len(request.prompt), request.max_new_tokens
        if min(sizes) < 1 or sum(sizes) > self.cache.t_max:
            raise ValueError(f"{sizes} tokens in a row of {self.cache.t_max}")

    def _serve(self, requests, told):
        states = list(map(RequestState, requests))
        going, t_max = set(range(len(states))), self.cache.t_max
        tokens = self.run(prompt_step([r.prompt for r in requests], t_max)).tolist()
        while True:
            for row in sorted(going):
                state = states[row]
                state.output.append(tokens[row])
                told(row, tokens[row])
                state.finish_reason = requests[row].ends_with(tokens[row], len(state.output))
                if state.finish_reason:
                    going.discard(row)
            if not going:
                return states
            contexts = [s.num_tokens if row in going else 0 for row, s in enumerate(states)]
            tokens = self.run(decode_step(tokens, contexts, t_max)).tolist()


def columns_of_batch(requests, t_max):
    needed = beyond = ended = 0
    for step in range(1, max(n for _, n in requests)):
        going = [p + step for p, n in requests if step < n]
        needed += sum(going)
        beyond += sum(t_max - context for context in going)
        ended += t_max * (len(requests) - len(going))
    return MaskedColumns(needed, beyond, ended)
