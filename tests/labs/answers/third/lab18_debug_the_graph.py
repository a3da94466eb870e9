"""Six mends that stay close to what was given: most of them elsewhere than the first ones."""

# to: runner_a.py


def diagnosis():
    return "graphs-follow-names", 25


class Letters:
    def stage(self, rows, letters):
        addresses = dict(self.boxes)
        pairs = [
            (box[:rows], self.sheet(name, rows, letters[name])) for name, box in addresses.items()
        ]
        self.device.copy_batch(pairs)

    def sheet(self, name, rows, letter):
        box = self.boxes[name]
        written = [np.asarray(row, box.dtype) for row in letter]
        blank = np.zeros(box.shape[1:], box.dtype)
        return np.stack(written + [blank] * (rows - len(written)))


# to: runner_b.py


def diagnosis():
    return "padded-rows-rest", 28


class Desk:
    def stage(self, rows, batch):
        for name, new in batch.items():
            paper = self.papers[name]
            for row in range(rows):
                paper[row] = new[row] if row < len(new) else 0
        self.send(rows)


# to: runner_c.py


def diagnosis():
    return "sizes-may-be-chosen", 8


def prepare(device, forward, shapes, sizes):
    state = State(device, forward, {}, (), device.memory.new_pool())
    for name, (shape, dtype) in shapes.items():
        state.inputs[name] = device.upload(np.zeros(shape, dtype))
    state.sizes = tuple(sorted(set(sizes), key=lambda size: -size))
    return state


def fitting(state, rows):
    try:
        return min(size for size in state.graphs if size >= rows)
    except ValueError:
        top = max(state.graphs)
        raise CaptureError(f"{top} is the largest size: {rows} rows must run eagerly") from None


# to: runner_d.py


def diagnosis():
    return "a-warm-up-is-no-step", 17


class Play:
    def rehearse(self):
        device, rehearsed = self.stage.device, 0
        while rehearsed < REHEARSALS:
            with device.allocating_from(self.stage.wings):
                device.free(self.forward(self.rows))
            rehearsed += 1
        device.synchronize()


class Theatre:
    def capture(self):
        self.house.clear()
        for play in self.plays[::-1]:
            play.rehearse()
            play.record()


# to: runner_e.py


def diagnosis():
    return "one-launch-between-graphs", 20 + 0


class Conductor:
    def written(self, rows):
        with self.device.trace(self.hall) as launches:
            score = Score(self.forward(rows))
        for live, group in groupby(launches, key=lambda launch: launch.label in self.live):
            for launch in group if live else ():
                score.live.setdefault(len(score.graphs), []).append(launch)
            if not live:
                with self.device.capture(self.hall, f"{len(score.graphs)} of {rows}") as graph:
                    for launch in group:
                        self.device.submit(launch)
                score.graphs.append(graph)
        return score

    def perform(self, score):
        number, count = 0, len(score.graphs)
        while True:
            list(map(self.device.submit, score.live.get(number, [])))
            if number == count:
                return
            score.graphs[number].replay()
            number += 1


# to: runner_f.py


def diagnosis():
    return "freed-is-free", 7


class Landlord:
    def capture(self):
        """Settle all sizes first, then sign: nobody else asks for memory in between."""
        for rows, _, _ in self.leases:
            self.clear()
            self.device.free(self.forward(rows))
        self.device.synchronize()
        signed = [(rows, *self.signed(rows, self.estate)) for rows, _, _ in self.leases[::-1]]
        self.leases = signed[::-1]
