"""The mends of the six runners of lab 18, and what was to be seen in the logs."""

# to: runner_a.py
# pytorch PR 137318: an input is rebound, so that the graph goes on reading the old address.


def diagnosis() -> tuple[str, int]:
    """What the author believed, and the first line of the log that a right runner had not caused.

    Both from `python -m labs.lab18_debug_the_graph.incident a`, before anything is mended.
    """
    return "graphs-follow-names", 25


class Letters:
    def sheet(self, name: str, rows: int, letter: np.ndarray) -> np.ndarray:
        """The letter as its box holds it: `rows` rows of the box's type, zeros behind it."""
        box = self.boxes[name]
        sheet = np.zeros((rows, *box.shape[1:]), box.dtype)
        sheet[: len(letter)] = letter
        return sheet


# to: runner_b.py
# nano-vllm issue 89, delayed: padded rows keep the slots of an earlier batch and write there.


def diagnosis() -> tuple[str, int]:
    """What the author believed, and the first line of the log that a right runner had not caused.

    Both from `python -m labs.lab18_debug_the_graph.incident b`, before anything is mended.
    """
    return "padded-rows-rest", 28


class Desk:
    def stage(self, rows: int, batch: Mapping[str, np.ndarray]) -> None:
        """Bring a batch in: first its own rows, and zeros in the others, up to `rows`."""
        for name, new in batch.items():
            self.papers[name][: len(new)] = new
            self.papers[name][len(new) :] = 0
        self.send(rows)


# to: runner_c.py
# nano-vllm with max_num_seqs=20: no rung above 16, and `next()` without a default.


def diagnosis() -> tuple[str, int]:
    """What the author believed, and the first line of the log that a right runner had not caused.

    Both from `python -m labs.lab18_debug_the_graph.incident c`, before anything is mended.
    """
    return "sizes-may-be-chosen", 10


def prepare(
    device: Device, forward: Callable[[int], Buffer],
    shapes: Mapping[str, tuple[tuple[int, ...], str]], sizes: Sequence[int],
) -> State:  # fmt: skip
    """Put the inputs on the device and decide what to capture: every size that was asked for."""
    inputs = {name: device.empty(*shape) for name, shape in shapes.items()}
    ladder = tuple(sorted(sizes, reverse=True))
    return State(device, forward, inputs, ladder, device.memory.new_pool())


def fitting(state: State, rows: int) -> int:
    """The smallest captured size that holds so many rows.

    Raises `CaptureError` where none does, naming the rows and the largest size.
    """
    size = next((size for size in sorted(state.graphs) if size >= rows), None)
    if size is None:
        raise CaptureError(f"a batch of {rows} rows, and no graph above {max(state.graphs)}")
    return size


# to: runner_d.py
# onnxruntime 32243: the warm-up is a step like any other, and it counts.


def diagnosis() -> tuple[str, int]:
    """What the author believed, and the first line of the log that a right runner had not caused.

    Both from `python -m labs.lab18_debug_the_graph.incident d`, before anything is mended.
    """
    return "a-warm-up-is-no-step", 18


class Play:
    def rehearse(self) -> None:
        """Run until every kernel has settled, so that nothing is initialised during the recording.

        Nobody's words count by it. Takes its memory from the plays' own, gives it back, and
        returns when the GPU is done.
        """
        device = self.stage.device
        self.stage.clear()
        with device.allocating_from(self.stage.wings):
            for _ in range(REHEARSALS):
                device.free(self.forward(self.rows))
        device.synchronize()


# to: runner_e.py
# libuipc PR 472 in kind: a launch that was listed, and that no replay runs.


def diagnosis() -> tuple[str, int]:
    """What the author believed, and the first line of the log that a right runner had not caused.

    Both from `python -m labs.lab18_debug_the_graph.incident e`, before anything is mended.
    """
    return "one-launch-between-graphs", 20


@dataclass
class Score:
    live: dict[int, list[Node]] = field(default_factory=dict)  # by the number of graphs before


class Conductor:
    def written(self, rows: int) -> Score:
        """List the launches of a step; graph those that are not live, in the order of the list.

        Every launch of the list runs once in a performance. Nothing runs here.
        """
        with self.device.trace(self.hall) as launches:
            score = Score(self.forward(rows))
        for live, group in groupby(launches, key=lambda launch: launch.label in self.live):
            if live:
                score.live[len(score.graphs)] = list(group)
            else:
                score.graphs.append(self.movement(group, f"{len(score.graphs)} of {rows}"))
        return score

    def perform(self, score: Score) -> None:
        """Graphs and live launches, in the order of the score."""
        for number, graph in enumerate([*score.graphs, None]):
            for launch in score.live.get(number, ()):
                self.device.submit(launch)
            if graph is not None:
                graph.replay()


# to: runner_f.py
# vLLM 55336, from the victim's side: memory that graphs still write was given to another.


def diagnosis() -> tuple[str, int]:
    """What the author believed, and the first line of the log that a right runner had not caused.

    Both from `python -m labs.lab18_debug_the_graph.incident f`, before anything is mended.
    """
    return "freed-is-free", 13


class Landlord:
    def capture(self) -> None:
        """Capture every size, the largest first, in memory that is the runner's and nobody else's.

        A step before it, on zeros, lets the kernels settle; it is waited for.
        """
        for at, (rows, _, _) in reversed(list(enumerate(self.leases))):
            self.clear()
            settled = self.forward(rows)
            self.device.free(settled)
            self.device.synchronize()
            self.leases[at] = rows, *self.signed(rows, self.estate)
