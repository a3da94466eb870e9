"""Lab 9: pieces around live attention. What you write is held against the same steps, eager."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from labs.support.inputs import frozen
from mini_engine.dispatch.pieces import Piece, split_pieces
from mini_engine.sim import kernels as k
from mini_engine.sim.capture import Graph, PiecewiseGraph
from mini_engine.sim.device import Device
from mini_engine.sim.graphs import StaticInputs
from mini_engine.sim.launch import Buffer, kernel
from mini_engine.sim.piecewise import PiecewiseGraphRunner
from mini_engine.step.cards import load_spec

MIB = 2**20
SPLIT = frozenset({"attention", "kv_write"})
OPS = {"n": "norm", "m": "mlp", "a": "attention", "k": "kv_write", "e": "aten::empty"}


def random_words(seed: int, letters: str, number: int) -> list[str]:
    """Forward passes as words: a letter an op. `a` and `k` split, `e` is a bare allocation."""
    rng = random.Random(seed)
    return ["".join(rng.choices(letters, k=rng.randint(0, 14))) for _ in range(number)]


def pieces_of(word: str) -> list[Piece]:
    return split_pieces(tuple(OPS[letter] for letter in word), SPLIT)


def words_of(pieces: list[Piece]) -> list[str]:
    """The ops of each piece as a word."""
    letters = {op: letter for letter, op in OPS.items()}
    return ["".join(letters[op] for op in piece.ops) for piece in pieces]


# ---------------------------------------------------------------- where to cut


@pytest.mark.catches("every-attention-its-own-piece")
def test_splitting_ops_side_by_side_share_a_piece() -> None:
    for word, expected in (("kakk", ["kakk"]), ("nkan", ["n", "ka", "n"]), ("aam", ["aa", "m"])):
        found = words_of(pieces_of(word))
        assert found == expected, f"pieces of {word}"


@pytest.mark.catches("pieces-by-kind")
def test_a_piece_ends_where_the_kind_of_op_changes() -> None:
    for word in ("nnannka", "", *random_words(1, "nma", 60)):
        runs = re.findall("[ak]+|[^ak]+", word)
        pieces = pieces_of(word)
        found = words_of(pieces)
        assert found == runs, f"pieces of {word}"
        kinds = [piece.splitting for piece in pieces]
        assert kinds == [run[0] in "ak" for run in runs], f"which pieces of {word} split"


@pytest.mark.catches("number-0-is-the-first-piece")
def test_the_next_piece_has_the_next_number_and_0_is_what_comes_before_the_first_cut() -> None:
    for word, expected in (("nn", [0]), ("an", [1, 2]), ("nan", [0, 1, 2]), ("kmak", [1, 2, 3])):
        numbers = [piece.id for piece in pieces_of(word)]
        assert numbers == expected, f"numbers of the pieces of {word}"


@pytest.mark.catches("a-graph-of-nothing")
def test_an_allocation_alone_between_splitting_ops_joins_the_captured_piece_before_it() -> None:
    pieces = split_pieces(("norm", "kv_write", "aten::empty", "attention", "mlp"), SPLIT)
    found = [
        " ".join([str(piece.id), "live" if piece.splitting else "graph", *piece.ops])
        for piece in pieces
    ]
    expected = [
        "0 graph norm aten::empty",
        "1 live kv_write",
        "3 live attention",  # number 2 was left, and is not used again
        "4 graph mlp",
    ]
    assert found == expected


def test_an_allocation_moves_though_it_is_listed_among_the_splitting_ops() -> None:
    pieces = split_pieces(("norm", "aten::empty", "mlp"), {"aten::empty"})
    assert [(piece.id, piece.splitting, piece.ops) for piece in pieces] == [
        (0, False, ["norm", "aten::empty"]),
        (2, False, ["mlp"]),
    ]


@pytest.mark.catches("a-graph-of-nothing")
def test_only_a_lone_allocation_moves_and_only_to_a_captured_piece_before_it() -> None:
    for word, numbers, words in (
        ("nkea", [0, 1, 3], ["ne", "k", "a"]),
        ("nke", [0, 1], ["ne", "k"]),
        ("nkeea", [0, 1, 2, 3], ["n", "k", "ee", "a"]),  # two make a piece like any other
        ("kea", [1, 2, 3], ["k", "e", "a"]),  # none before it
        ("ekn", [0, 1, 2], ["e", "k", "n"]),
        ("keaea", [1, 2, 3, 5], ["k", "ee", "a", "a"]),  # the first stayed, the second joins it
        ("nkeaea", [0, 1, 3, 5], ["nee", "k", "a", "a"]),  # what has moved is no piece to join
        ("nknea", [0, 1, 2, 3], ["n", "k", "ne", "a"]),  # not alone
        ("nkmaeka", [0, 1, 2, 3, 5], ["n", "k", "me", "a", "ka"]),  # the last of two before it
    ):
        pieces = pieces_of(word)
        found, found_numbers = words_of(pieces), [piece.id for piece in pieces]
        assert found == words, f"pieces of {word}"
        assert found_numbers == numbers, f"numbers of the pieces of {word}"


def test_positions_say_where_each_op_stood() -> None:
    for word in ("nkea", *random_words(2, "nnakm", 60)):
        for piece, found in zip(pieces_of(word), words_of(pieces_of(word)), strict=True):
            stood = "".join(word[at] for at in piece.positions)
            assert stood == found, f"ops at {piece.positions} of {word}"
            assert piece.positions == sorted(set(piece.positions))


def test_an_op_splits_under_its_default_overload_too() -> None:
    pieces = split_pieces(("ns::norm.default", "ns::attention.default", "ns::attention.out"),
                          frozenset({"ns::attention"}))  # fmt: skip
    assert [piece.splitting for piece in pieces] == [False, True, False]


def test_l_layers_of_attention_leave_l_plus_one_graphs() -> None:
    for layers in (1, 2, 28):
        pieces = split_pieces(
            ("embed", *("norm", "qkv", "kv_write", "attention", "o", "mlp") * layers), SPLIT
        )
        graphs = sum(not piece.splitting for piece in pieces)
        assert (graphs, len(pieces) - graphs) == (layers + 1, layers)


# ---------------------------------------------------------------- cut while capturing


def breakable(word: str) -> tuple[Device, PiecewiseGraph]:
    """One launch a letter, captured with breaks at `a` and `k`."""
    device = Device(load_spec("h200"), memory_bytes=64 * MIB, record=True)
    x = device.upload(np.ones(4, np.float32))
    with device.capture_breakable("ak", name="a capture with breaks") as whole:
        for letter in word:
            device.launch(k.scale, x, x, by=2.0, label=letter)
    assert device.read(x).tolist() == [1] * 4, f"a launch of {word} ran while it was captured"
    return device, whole


@pytest.mark.catches("a-break-runs-twice")
def test_marked_launches_are_live_and_in_no_graph() -> None:
    for word in ("nnann", "anka", *random_words(9, "nak", 40)):
        _, whole = breakable(word)
        live = "".join(node.label for node in whole.live)
        in_graphs = "".join(node.label for node in whole.nodes)
        assert live == re.sub("[^ak]", "", word), f"live launches of {word}"
        assert in_graphs == re.sub("[ak]", "", word), f"launches of {word} that graphs hold"


@pytest.mark.catches("a-break-leaves-the-graph-open")
def test_launches_between_two_marked_ones_share_a_graph() -> None:
    for word in ("nnann", "nn", "anan", "nka", "", *random_words(8, "nma", 40)):
        _, whole = breakable(word)
        graphs = ["".join(node.label for node in graph.nodes) for graph in whole.graphs]
        filled = [nodes for nodes in graphs if nodes]
        assert filled == re.findall("[^ak]+", word), f"graphs of {word} that hold something"
        assert len(graphs) <= 1 + len(whole.live), "one more than breaks, at most"


def test_all_graphs_of_a_capture_have_its_pool_and_its_name() -> None:
    _, whole = breakable("nnankmann")
    pools, labels = {graph.pool for graph in whole.graphs}, {graph.name for graph in whole.graphs}
    assert len(pools) == 1, f"pools of one capture: {pools}"
    assert labels == {"a capture with breaks"}


@pytest.mark.catches("a-break-leaves-the-graph-open", "a-break-runs-twice")
def test_a_broken_capture_replays_every_launch_once_and_in_order() -> None:
    for word in ("nnanmk", "aan", "", *random_words(10, "nmak", 30)):
        device, whole = breakable(word)
        event = len(device.timeline)
        whole.replay()
        events = device.timeline[event:]
        ran = "".join(e.name for e in events if e.category in ("node", "kernel"))
        assert ran == word


# ---------------------------------------------------------------- a rung in pieces

WIDTH, SEATS, LONGEST, TOP = 5, 9, 12, 8
Batch = dict[str, np.ndarray]


@kernel()
def embed(h: np.ndarray, x: np.ndarray) -> None:
    h[...] = x


@kernel()
def project(q: np.ndarray, h: np.ndarray) -> None:
    q[...] = h * np.float32(0.5) + np.float32(1)


@kernel()
def kv_write(cache: np.ndarray, q: np.ndarray, seats: np.ndarray, lens: np.ndarray) -> None:
    cache[seats, lens - 1] = q  # a padded row has seat 0, which is nobody's


@kernel()
def attention(out: np.ndarray, cache: np.ndarray, seats: np.ndarray, lens: np.ndarray) -> None:
    for row, (seat, length) in enumerate(zip(seats, lens, strict=True)):
        out[row] = cache[seat, :length].sum(axis=0) / np.float32(max(length, 1))


@kernel()
def mlp(h: np.ndarray, attended: np.ndarray) -> None:
    h[...] = h * np.float32(0.5) + attended


class Decoder:
    """Some layers of attention over a cache; seat 0 is nobody's. `run` is a runner's, or eager."""

    def __init__(self, layers: int, sizes: list[int] | None = None, *splitting: str) -> None:
        self.device = Device(load_spec("h200"), memory_bytes=64 * MIB, record=True)
        shape = (SEATS, LONGEST, WIDTH)
        zeros = np.zeros(shape, np.float32)
        self.caches = [self.device.upload(zeros) for _ in range(layers)]
        self.inputs = StaticInputs(
            self.device,
            {"x": ((TOP, WIDTH), "float32"), "seats": ((TOP,), "int32"), "lens": ((TOP,), "int32")},
        )
        self.runner = None
        if sizes:
            self.runner = PiecewiseGraphRunner(
                self.device, self.forward, self.inputs, sizes, splitting
            )

    def forward(self, rows: int) -> Buffer:
        launch, batch = self.device.launch, self.inputs.view(rows)
        seats, lens = batch["seats"], batch["lens"]
        with self.device.scratch() as scratch:
            h, q, attended = (scratch.empty(rows, WIDTH) for _ in range(3))
            launch(embed, h, batch["x"])
            for cache in self.caches:
                launch(project, q, h)
                launch(kv_write, cache, q, seats, lens)
                launch(attention, attended, cache, seats, lens)
                launch(mlp, h, attended)
            return scratch.keep(h)

    def run(self, batch: Batch) -> np.ndarray:
        rows = len(batch["seats"])
        if self.runner:
            return self.device.read(self.runner.run(rows, batch))
        self.inputs.stage(rows, batch)
        return self.device.read(self.forward(rows))

    def gpu_since(self, event: int) -> list[tuple[str, str]]:
        """(name, "node" of a graph or live "kernel") of what the GPU has run, from an event on."""
        done = self.device.timeline[event:]
        return [(e.name, e.category) for e in done if e.category in ("node", "kernel")]


def captured(layers: int, sizes: list[int], *splitting: str) -> Decoder:
    decoder = Decoder(layers, sizes, *splitting)
    assert decoder.runner
    decoder.runner.capture()
    return decoder


def random_steps(rng: random.Random, number: int, most: int) -> list[Batch]:
    """Decode steps: a few seats each, and each seat's context is longer by one than before."""
    lens, steps = dict.fromkeys(range(1, SEATS), 0), []
    for _ in range(number):
        growing = [seat for seat, length in lens.items() if length < LONGEST]
        seats = rng.sample(growing, min(len(growing), rng.randint(1, most)))
        for seat in seats:
            lens[seat] += 1
        x = [[rng.uniform(-3, 3) for _ in range(WIDTH)] for _ in seats]
        steps.append(
            {
                "x": frozen(np.array(x, np.float32)),
                "seats": frozen(np.array(seats, np.int32)),
                "lens": frozen(np.array([lens[seat] for seat in seats], np.int32)),
            }
        )
    return steps


WAYS = [
    ("attention",),
    ("attention", "kv_write"),
    ("attention", "mlp"),
    ("embed",),
    (),
    ("embed", "project", "kv_write", "attention", "mlp"),
]


@pytest.mark.catches("forward-twice")
def test_to_record_a_rung_forward_is_called_once() -> None:
    decoder, calls = Decoder(2, [4], "attention"), []
    assert decoder.runner
    decoder.runner.forward = lambda rows: (calls.append(rows), decoder.forward(rows))[1]
    decoder.runner._record(3)
    assert calls == [3], "rows of each call of forward"


@pytest.mark.catches("attention-at-capture")
def test_recording_runs_nothing_on_the_gpu() -> None:
    decoder = Decoder(2, [4], "attention")
    assert decoder.runner
    before = decoder.device.counters.copy()
    decoder.runner._record(4)
    did = decoder.device.counters.since(before)
    ran = did.kernels, did.graphs, did.launches
    assert ran == (0, 0, 0), "kernels, graphs, and launches and copies while recording"


@pytest.mark.catches("attention-captured-too", "live-ops-last", "a-kernel-left-outside")
def test_launches_of_splitting_ops_stand_live_between_graphs_of_the_others() -> None:
    for layers, splitting in [(n, way) for n in (1, 3) for way in WAYS]:
        decoder = Decoder(layers, [4], *splitting)
        assert decoder.runner
        whole, _ = decoder.runner._record(4)
        assert isinstance(whole, PiecewiseGraph)
        found = [
            [node.label for node in launch.nodes] if isinstance(launch, Graph) else launch.label
            for launch in whole.launches
        ]
        expected: list[str | list[str]] = []
        for op in ["embed", *["project", "kv_write", "attention", "mlp"] * layers]:
            if op in splitting:
                expected.append(op)
            elif expected and isinstance(expected[-1], list):
                expected[-1].append(op)
            else:
                expected.append([op])
        assert found == expected, f"launches of {layers} layers, split at {splitting}"


@pytest.mark.catches("a-kernel-left-outside", "live-ops-last")
def test_a_replay_runs_the_same_kernels_in_the_same_order_as_the_eager_step() -> None:
    for layers, splitting in [(n, way) for n in (1, 3) for way in WAYS]:
        eager, pieces = Decoder(layers), captured(layers, [4], *splitting)
        (batch,) = random_steps(random.Random(4), 1, 4)
        ran = []
        for decoder in (eager, pieces):
            event = len(decoder.device.timeline)
            decoder.run(batch)
            ran.append([name for name, _ in decoder.gpu_since(event)])
        expected, found = ran
        assert found == expected, f"kernels of {layers} layers, split at {', '.join(splitting)}"


@pytest.mark.catches("attention-captured-too", "a-replay-of-nothing")
def test_a_step_is_one_copy_a_launch_for_each_piece_and_one_for_each_live_op() -> None:
    for layers in (1, 2, 5):
        for splitting in (("attention",), ("kv_write", "attention")):
            decoder = captured(layers, [4], *splitting)
            assert decoder.runner
            (batch,) = random_steps(random.Random(5), 1, 4)
            before = decoder.device.counters.copy()
            decoder.runner.run(len(batch["seats"]), batch)
            did = decoder.device.counters.since(before)
            assert did.graphs == layers + 1, "graphs of a step"
            assert did.launches == 1 + did.graphs + layers * len(splitting), "launches of a step"


@pytest.mark.catches("attention-at-capture", "live-ops-last")
def test_attention_sees_the_context_of_this_step_and_not_of_the_capture() -> None:
    eager, pieces = Decoder(2), captured(2, [4], "attention")
    for step, batch in enumerate(random_steps(random.Random(6), 12, 4)):
        found, expected = pieces.run(batch), eager.run(batch)
        assert found.tolist() == expected.tolist(), f"step {step}, contexts of {batch['lens']}"


# ---------------------------------------------------------------- memory


def wide_runner(sizes: list[int]) -> PiecewiseGraphRunner:
    """y = 12x in three launches over 4 MiB of scratch a row, split in the middle."""
    device = Device(load_spec("h200"), memory_bytes=128 * MIB)
    inputs = StaticInputs(device, {"x": ((max(sizes), 4), "float32")})

    def forward(rows: int) -> Buffer:
        with device.scratch() as scratch:
            wide, out = scratch.empty(rows * MIB // 4, 4), scratch.empty(rows, 4)
            inside = wide[:rows]
            device.launch(k.scale, inside, inputs.view(rows)["x"], by=2.0)
            device.launch(k.scale, inside, inside, by=2.0, label="attention")
            device.launch(k.scale, out, inside, by=3.0)
            return scratch.keep(out)

    return PiecewiseGraphRunner(device, forward, inputs, sizes, {"attention"})


@pytest.mark.catches("pieces-in-separate-pools")
def test_all_pieces_of_all_rungs_belong_to_the_pool_of_the_runner() -> None:
    runner = wide_runner([1, 2, 4])
    runner.capture()
    for rung, whole in runner.graphs.items():
        assert isinstance(whole, PiecewiseGraph)
        assert {graph.pool for graph in whole.graphs} == {runner.pool}, f"pools of rung {rung}"
    assert runner.device.memory.reserved_bytes(runner.pool) == (4 * 4 + 2) * MIB


@pytest.mark.catches("pieces-in-separate-pools")
def test_pieces_replay_after_the_device_has_taken_back_what_is_only_cached() -> None:
    runner = wide_runner([2])
    runner.capture()
    runner.device.memory.release_cached()  # their scratch is free, and the graphs point there
    out = runner.device.read(runner.run(2, {"x": np.ones((2, 4), np.float32)}))
    assert out.tolist() == [[12.0] * 4] * 2


# ---------------------------------------------------------------- all together


def test_whatever_splits_and_whatever_comes_the_pieces_compute_what_the_eager_step_does() -> None:
    rng = random.Random(7)
    for _ in range(20):
        layers, sizes = rng.randint(1, 3), sorted(rng.sample(range(1, TOP), 3))
        splitting = rng.choice(WAYS)
        eager, pieces = Decoder(layers), captured(layers, sizes, *splitting)
        for batch in random_steps(rng, 8, sizes[-1]):
            found, expected = pieces.run(batch), eager.run(batch)
            assert found.tolist() == expected.tolist(), f"{layers} layers split at {splitting}"
