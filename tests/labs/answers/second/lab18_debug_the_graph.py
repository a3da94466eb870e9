"""Six other mends: by numpy's own tools, at another place, or with another record of the step."""

# to: runner_a.py


def diagnosis():
    belief, shown_at = "graphs-follow-names", 24
    return belief, shown_at


class Letters:
    def sheet(self, name, rows, letter):
        box = self.boxes[name]
        behind = [(0, rows - len(letter))] + [(0, 0)] * (letter.ndim - 1)
        return np.pad(letter, behind).astype(box.dtype)


# to: runner_b.py


def diagnosis():
    return "padded-rows-rest", 25


class Desk:
    def stage(self, rows, batch):
        self.papers = {name: np.zeros_like(paper) for name, paper in self.papers.items()}
        for name, paper in self.papers.items():
            paper[: len(batch[name])] = batch[name]
        self.send(rows)


# to: runner_c.py


def diagnosis():
    return ("sizes-may-be-chosen", 3)


def prepare(device, forward, shapes, sizes):
    inputs = {name: device.empty(*shape) for name, shape in shapes.items()}
    return State(device, forward, inputs, tuple(sorted(sizes))[::-1], device.memory.new_pool())


def fitting(state, rows):
    captured = sorted(state.graphs)
    if rows > captured[-1]:
        raise CaptureError(f"largest {captured[-1]} < {rows}")
    return captured[int(np.searchsorted(captured, rows))]


# to: runner_d.py


def diagnosis():
    return "a-warm-up-is-no-step", 16


class Play:
    def rehearse(self):
        nobody = {name: np.zeros((0, *prop.shape[1:])) for name, prop in self.stage.props.items()}
        self.stage.set(self.rows, nobody)
        with self.stage.device.allocating_from(self.stage.wings):
            screens = [self.forward(self.rows) for _ in range(REHEARSALS)]
        self.stage.device.synchronize()
        for screen in screens:
            self.stage.device.free(screen)


# to: runner_e.py


def diagnosis():
    return "one-launch-between-graphs", int("20")


class Score:
    order: list = field(default_factory=list)  # graphs and live launches, as they come


class Conductor:
    def written(self, rows):
        with self.device.trace(self.hall) as launches:
            score = Score(self.forward(rows))
        at = 0
        while at < len(launches):
            if launches[at].label in self.live:
                score.order.append(launches[at])
                at += 1
                continue
            with self.device.capture(self.hall, f"{rows} from launch {at}") as graph:
                while at < len(launches) and launches[at].label not in self.live:
                    self.device.submit(launches[at])
                    at += 1
            score.order.append(graph)
        return score

    def perform(self, score):
        for part in score.order:
            part.replay() if isinstance(part, Graph) else self.device.submit(part)


# to: runner_f.py


def diagnosis():
    return "freed-is-free", 12


class Landlord:
    def capture(self):
        with self.device.allocating_from(self.estate):
            for at in range(len(self.leases) - 1, -1, -1):
                rows = self.leases[at][0]
                self.clear()
                settled = self.forward(rows)
                self.device.free(settled)
                self.device.synchronize()
                self.leases[at] = rows, *self.signed(rows, settled.block.pool)
