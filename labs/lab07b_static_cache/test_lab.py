"""Lab 7b: a static cache, a mask and a dictionary of graphs, on the emulator or a GPU.

A Qwen3 of two layers writes through your code; what it writes is held to the same model that
computes every text anew, alone, with pages and without graphs. LAB_DEVICE=cuda takes real graphs.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from labs.lab07b_static_cache.masked_rows import MaskedColumns, columns_of_batch
from labs.lab07b_static_cache.static_cache import (
    MaskedAttention,
    MaskedStep,
    StaticCache,
    decode_step,
    prompt_step,
)
from labs.lab07b_static_cache.static_engine import StaticEngine
from labs.support.compared import assert_near
from labs.support.counting import lines_run
from labs.support.stream_log import logged
from labs.support.tiny import DEVICE, TINY, graphs, ints, weights
from mini_engine.cuda.attention import HostAttention
from mini_engine.cuda.inputs import StepInputs
from mini_engine.cuda.model import KVCache, Model
from mini_engine.engine.batch import Request, RequestState

gc.freeze()  # each capture collects garbage first: it need not look through PyTorch's modules
T_MAX = 20
EMULATED = pytest.mark.skipif(DEVICE != "cpu", reason="it looks into the emulator's streams")


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def new_engine(batch: int = 3, t_max: int = T_MAX, *, eager: bool = False) -> StaticEngine:
    table = StaticCache.allocate(TINY, batch, t_max, graphs().device, torch.float32)
    return StaticEngine(Model(weights(), table.blocks()), table, graphs(), eager=eager)


def on_device(step: MaskedStep) -> MaskedStep:
    return step.to(graphs().device)


@cache
def computed(text: tuple[int, ...]) -> tuple[int, Tensor, Tensor]:
    """The next token of a text, and its K and V, (layers, tokens, kv_heads, D): the oracle."""
    count = len(text)
    cache_ = KVCache.allocate(TINY, 2, T_MAX + 4, graphs().device, torch.float32)
    model, rows = Model(weights(), cache_), list(range(count))
    step = StepInputs(
        ints(text), ints(rows), ints([T_MAX + 4 + r for r in rows]), ints([count]), ints([count]),
        ints([count - 1]), ints([[1]]),
    )  # fmt: skip
    attention = HostAttention((count,), (count,), T_MAX + 4)
    token = int(model.head(model.body(step, attention), step)[1])
    keys, values = (torch.stack([x[1, :count] for x in every])
                    for every in (cache_.keys, cache_.values))  # fmt: skip
    return token, keys, values


def alone(request: Request) -> tuple[list[int], str]:
    """The answer, every token from the whole text before it, and why it ends."""
    answer: list[int] = []
    while True:
        answer.append(computed((*request.prompt, *answer))[0])
        if reason := request.ends_with(answer[-1], len(answer)):
            return answer, reason


def some_prompts(count: int, seed: int, longest: int = 7) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    lengths = rng.sample(range(2, longest + 1), count)  # no two alike, none of one token
    return [tuple(rng.randrange(TINY.vocab_size) for _ in range(length)) for length in lengths]


def some_requests(count: int, seed: int, *, longest: int = 7) -> list[Request]:
    rng = random.Random(seed)
    return [
        Request(str(i), prompt, rng.randint(1, 8), eos_ids=rng.sample(range(TINY.vocab_size), 6))
        for i, prompt in enumerate(some_prompts(count, seed, longest))
    ]


def answers(engine: StaticEngine, requests: Sequence[Request]) -> list[tuple[list[int], str]]:
    return [(list(c.tokens), c.finish_reason) for c in engine.generate(requests)]


def assert_holds(engine: StaticEngine, row: int, text: Sequence[int]) -> None:
    """The first columns of a row hold K and V of the text."""
    _, keys, values = computed(tuple(text))
    for table, right in ((engine.cache.keys, keys), (engine.cache.values, values)):
        # float32 on both sides, sums in another order
        assert_near(table[:, row, : len(text)], right, "cache", atol=1e-5, rtol=1e-4)


# ---------------------------------------------------------------- prompts


@pytest.mark.catches("last-column-is-the-last-token")
def test_the_last_token_of_a_prompt_is_not_the_padding_behind_it() -> None:
    step = prompt_step([(1, 2), (3, 4, 5, 6), (7,)], T_MAX)
    ends = step.input_ids.flatten()[step.last_rows.long()]
    assert step.last_rows.tolist() != [3, 7, 11] or ends.tolist() == [2, 6, 7]


@pytest.mark.catches("a-prompt-sees-itself-whole", "padding-mask-is-enough")
def test_no_token_of_a_prompt_sees_one_that_comes_after_it() -> None:
    mask = prompt_step([(1, 2), (3, 4, 5, 6), (7, 8, 9)], T_MAX).mask
    for row, length in enumerate((2, 4, 3)):
        for query in range(length):
            assert not mask[row, query, query + 1 :].any(), f"row {row}, token {query}"


@pytest.mark.parametrize("seed", range(3))
def test_ragged_prompts_give_the_token_that_each_gives_alone(seed: int) -> None:
    prompts = some_prompts(3, seed)
    tokens = new_engine().forward(on_device(prompt_step(prompts, T_MAX))).tolist()
    assert tokens == [computed(prompt)[0] for prompt in prompts]


@pytest.mark.catches("rows-are-as-long-as-the-prompt")
@pytest.mark.parametrize("seed", range(3))
def test_the_cache_holds_what_each_prompt_leaves_alone(seed: int) -> None:
    prompts, engine = some_prompts(3, 10 + seed), new_engine(batch=4)
    engine.forward(on_device(prompt_step(prompts, T_MAX)))
    for row, prompt in enumerate(prompts):
        assert_holds(engine, row, prompt)
    longest = max(map(len, prompts))
    for table in (engine.cache.keys, engine.cache.values):
        assert not table[:, :3, longest:].any(), "something was written behind the longest prompt"
        assert not table[:, 3].any(), "something was written to a row that has no request"


TYPES = [torch.int32] * 5 + [torch.bool]


def test_a_prompt_step_has_the_types_that_the_model_reads() -> None:
    types = [tensor.dtype for tensor in vars(prompt_step([(1, 2), (3,)], T_MAX)).values()]
    assert types == TYPES


def test_a_prompt_step_is_as_wide_as_its_longest_prompt() -> None:
    step = prompt_step([(1, 2), (3, 4, 5, 6), (7,)], T_MAX)
    assert step.mask.shape == (3, 4, 4)
    assert step.context_lens.tolist() == [2, 4, 1]
    assert step.input_ids[0, :2].tolist() == [1, 2]
    ends = step.input_ids.flatten()[step.last_rows.long()]
    assert ends.tolist() == [2, 6, 7], "last_rows counts through all rows of the step"
    assert step.positions.shape == step.slots.shape == step.input_ids.shape == (3, 4)


# ---------------------------------------------------------------- one token a row


@pytest.mark.catches("new-token-unseen")
def test_a_token_sees_itself() -> None:
    mask = decode_step([7, 8, 9], [1, 4, 8], 8).mask
    assert [bool(mask[row, 0, c - 1]) for row, c in enumerate((1, 4, 8))] == [True] * 3


@pytest.mark.catches("a-column-too-many", "a-position-is-a-length")
@pytest.mark.parametrize("seed", range(4))
def test_a_decode_step_says_where_each_token_stands_and_what_it_sees(seed: int) -> None:
    rng = random.Random(seed)
    t_max, tokens = rng.randint(6, 12), [rng.randrange(TINY.vocab_size) for _ in range(5)]
    contexts = [1, t_max, *(rng.randint(2, t_max - 1) for _ in range(3))]
    rng.shuffle(contexts)
    step = decode_step(tokens, contexts, t_max)
    assert step.input_ids.tolist() == [[token] for token in tokens]
    assert step.positions.tolist() == [[c - 1] for c in contexts]
    assert step.slots.tolist() == [[row * t_max + c - 1] for row, c in enumerate(contexts)]
    assert step.context_lens.tolist() == contexts
    assert step.last_rows.tolist() == [0, 1, 2, 3, 4]
    seen = [[[column < c for column in range(t_max)]] for c in contexts]
    assert step.mask.tolist() == seen, "a text of c tokens fills columns 0 to c - 1"


def test_a_decode_step_has_the_types_that_the_model_reads() -> None:
    types = [tensor.dtype for tensor in vars(decode_step((7, 8), (1, 4), 8)).values()]
    assert types == TYPES


@pytest.mark.catches("slot-0-is-nobodys")
def test_a_row_that_has_ended_keeps_out_of_slot_0() -> None:
    slots = decode_step([60, 7, 9], [4, 0, 0], 8).slots.flatten().tolist()
    assert 0 not in slots[1:], "it writes over the first token of row 0"


def test_a_row_that_has_ended_writes_into_its_own_row_whatever_it_sampled() -> None:
    step = decode_step([60, 7, 9], [0, 5, 0], 8)
    assert step.context_lens.tolist() == [0, 5, 0]
    for row, (slot, position) in enumerate(zip(step.slots, step.positions, strict=True)):
        assert row * 8 <= int(slot) < (row + 1) * 8, f"row {row} writes to slot {int(slot)}"
        assert 0 <= int(position) < TINY.max_position_embeddings
    assert not step.mask[0].any(), "a row without a text sees one"
    assert not step.mask[2].any(), "a row without a text sees one"


# ---------------------------------------------------------------- attention


def attended(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Query by query and head by head, in float64, over nothing but what the mask opens."""
    rows, queries, _ = mask.shape
    group = q.shape[1] // keys.shape[2]
    out = torch.zeros(q.shape, dtype=torch.float64)
    for row in range(rows):
        for query in range(queries):
            open_ = mask[row, query].nonzero().flatten()
            for head in range(q.shape[1]):
                k, v = (x[row, open_, head // group].double() for x in (keys, values))
                at = row * queries + query
                scores = k @ q[at, head].double() / q.shape[2] ** 0.5
                out[at, head] = scores.softmax(0) @ v
    return out


@pytest.mark.catches("mask-multiplies")
def test_where_all_scores_are_alike_the_mean_is_of_what_is_seen() -> None:
    values = torch.tensor([1.0, 3.0, 50.0, 70.0])[None, :, None, None].expand(1, 4, 2, 8)
    mask = torch.tensor([[[True, True, False, False]]])
    given = torch.zeros(1, 4, 8), torch.zeros(1, 4, 2, 8), values
    device = graphs().device
    out = MaskedAttention(mask.to(device)).attend(*(x.to(device) for x in given))
    mean = float(out.mean())  # 31: hidden columns as scores of 0; 1: in the denominator alone
    assert mean not in (pytest.approx(31.0), pytest.approx(1.0)), f"{mean:g} in place of 2"


def test_a_hidden_score_is_below_every_other_however_low_those_are() -> None:
    """Below -28,000 here: a fill of -10,000 would let the hidden columns win."""
    device = graphs().device
    values = torch.tensor([1.0, 3.0, 50.0, 70.0], device=device)[None, :, None, None]
    q = torch.full((1, 4, 8), 100.0, device=device)
    keys = torch.full((1, 4, 2, 8), -100.0, device=device)
    mask = torch.tensor([[[True, True, False, False]]], device=device)
    out = MaskedAttention(mask).attend(q, keys, values.repeat(1, 1, 2, 8))
    mean = float(out.mean())
    assert mean == pytest.approx(2.0), "the mean of 1 and 3, which the mask opens"


@pytest.mark.catches("zero-times-anything", "scores-are-sums")
@pytest.mark.parametrize("seed", range(4))
def test_attention_takes_what_the_mask_opens_and_nothing_else(seed: int) -> None:
    """More rows and columns in the cache than in the step; NaN or inf wherever nobody may look."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    rows, queries, columns = rng.randint(1, 3), rng.randint(1, 3), rng.randint(2, 7)
    mask = torch.rand(rows, queries, columns, generator=generator) < 0.5
    mask[..., 0], mask[..., 1] = True, False  # everybody sees something, nobody everything
    mask = mask[..., torch.randperm(columns, generator=generator)]
    q = torch.randn(rows * queries, 6, 8, generator=generator) * 2  # three heads for each KV head
    keys, values = (torch.randn(4, 9, 2, 8, generator=generator) for _ in range(2))
    unseen = torch.ones(4, 9, dtype=torch.bool)
    unseen[:rows, :columns] = ~mask.any(1)
    keys[unseen] = values[unseen] = torch.nan if seed % 2 else torch.inf
    device = graphs().device
    out = MaskedAttention(mask.to(device)).attend(*(x.to(device) for x in (q, keys, values)))
    right = attended(q, keys, values, mask).float()
    assert_near(out.cpu(), right, "attended", atol=1e-5, rtol=1e-4)


def test_attention_in_bf16_gives_bf16() -> None:
    """As the checkpoint has it: what comes out is multiplied with weights of that dtype."""
    generator, device = torch.Generator().manual_seed(8), graphs().device
    mask = torch.tensor([[[True, True, False, False]], [[True, False, True, True]]])
    q = torch.randn(2, 4, 8, generator=generator).bfloat16()
    keys, values = (torch.randn(2, 4, 2, 8, generator=generator).bfloat16() for _ in range(2))
    out = MaskedAttention(mask.to(device)).attend(*(x.to(device) for x in (q, keys, values)))
    assert out.dtype == torch.bfloat16
    right = attended(q, keys, values, mask)
    # 8 bits of mantissa: scores, weights, values and their sum round once each
    assert_near(out.cpu(), right, "attended", atol=0.05, rtol=0.05)


@pytest.mark.catches("hides-by-wiping")
def test_attention_leaves_the_cache_as_it_is() -> None:
    """What one step hides, the next may see."""
    generator, device = torch.Generator().manual_seed(9), graphs().device
    mask = torch.tensor([[[True, True, False, False]], [[True, False, True, False]]], device=device)
    given = {"q": torch.randn(2, 4, 8, generator=generator).to(device)}
    given |= {
        x: torch.randn(3, 6, 2, 8, generator=generator).to(device) for x in ("keys", "values")
    }
    before = {name: tensor.clone() for name, tensor in (*given.items(), ("mask", mask))}
    MaskedAttention(mask).attend(given["q"], given["keys"], given["values"])
    changed = [
        name for name, x in (*given.items(), ("mask", mask)) if not torch.equal(x, before[name])
    ]
    assert changed == [], "attention only reads"


@pytest.mark.parametrize("which", ["keys", "values"])
def test_what_is_seen_is_taken_as_it_is(which: str) -> None:
    """Selection drops what is hidden. Who cleans NaN away everywhere never learns of one."""
    q, ones = torch.ones(1, 4, 8), torch.ones(1, 5, 2, 8)
    broken = ones.clone()
    broken[0, 3] = torch.nan
    device = graphs().device
    for seen in (2, 4):
        mask = torch.arange(5)[None, None] < seen
        cached = (broken, ones) if which == "keys" else (ones, broken)
        given = (x.to(device) for x in (q, *cached))
        out = MaskedAttention(mask.to(device)).attend(*given)
        assert out.isnan().any() == (seen > 3)


@pytest.mark.catches("minus-infinity")
def test_a_row_that_sees_nothing_stays_finite() -> None:
    q, keys = torch.ones(2, 4, 8), torch.ones(2, 5, 2, 8)
    mask = torch.zeros(2, 1, 5, dtype=torch.bool)
    mask[1, 0, 2] = True
    out = MaskedAttention(mask).attend(q, keys, keys)
    assert out.isfinite().all()


@pytest.mark.catches("cut-to-the-longest")
def test_attention_can_be_captured() -> None:
    device, backend = graphs().device, graphs()
    mask = torch.ones(2, 1, 5, dtype=torch.bool, device=device)
    q, keys = torch.ones(2, 4, 8, device=device), torch.ones(2, 5, 2, 8, device=device)
    attend = MaskedAttention(mask).attend
    attend(q, keys, keys)
    graph = backend.CUDAGraph()
    with backend.graph(graph, pool=backend.graph_pool_handle(), stream=backend.Stream()):
        out = attend(q, keys, keys)
    graph.replay()
    assert out.shape == q.shape


# ---------------------------------------------------------------- graphs by shape


def blank(rows: int, queries: int, columns: int) -> MaskedStep:
    ids, rows_ = torch.zeros(rows, queries, dtype=torch.int32), torch.zeros(rows, dtype=torch.int32)
    mask = torch.zeros(rows, queries, columns, dtype=torch.bool)
    return MaskedStep(ids, ids.clone(), ids.clone(), rows_, rows_.clone(), mask)


def test_prompts_of_one_token_are_no_decode_step() -> None:
    """The decode graph is there first; a small mask that is copied into its own broadcasts."""
    engine = new_engine(batch=2)
    engine.generate([Request("a", (3, 4), 3), Request("b", (5, 6, 7), 2)])
    requests = [Request(str(i), (11 + i,), 5) for i in range(2)]
    assert answers(engine, requests) == [alone(request) for request in requests]


def test_steps_of_one_shape_share_a_graph_whatever_they_hold() -> None:
    engine = new_engine(batch=2)
    for number in range(3):
        prompts = [(1 + number, 2, 3), (4, 5 + number)]
        requests = [Request(str(i), prompt, 3 + number) for i, prompt in enumerate(prompts)]
        assert answers(engine, requests) == [alone(request) for request in requests]
        assert len(engine.graphs) == 2, "one for the prompts, one for decoding"


def test_fewer_requests_than_rows_and_other_lengths_have_graphs_of_their_own() -> None:
    engine = new_engine(batch=3)
    for number, count in enumerate((3, 2)):
        prompts = some_prompts(count, seed=30 + count)
        requests = [Request(str(i), prompt, 3 + i) for i, prompt in enumerate(prompts)]
        assert answers(engine, requests) == [alone(request) for request in requests]
        assert len(engine.graphs) == 2 * (number + 1)


def summed(step: MaskedStep) -> Tensor:
    """A stand-in for the model that reads every input: (2, b)."""
    whole = step.positions + 3 * step.slots + 5 * step.input_ids
    ids = whole.sum(1) + 7 * step.context_lens + 11 * step.last_rows
    return torch.stack([ids, step.mask.sum((1, 2))])


def random_step(generator: torch.Generator) -> MaskedStep:
    step = blank(3, 2, 4)
    for tensor in vars(step).values():
        tensor.random_(2 if tensor.dtype is torch.bool else 50, generator=generator)
    return step


def stand_in(monkeypatch: pytest.MonkeyPatch) -> StaticEngine:
    engine = new_engine()
    monkeypatch.setattr(engine, "forward", summed)
    return engine


@pytest.mark.catches("a-replay-takes-the-step", "input-rebound")
def test_each_new_step_is_copied_to_where_its_graph_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, generator = stand_in(monkeypatch), torch.Generator().manual_seed(6)
    inputs: dict[object, list[Tensor]] = {}  # of each graph, as they were after its capture
    for _ in range(3):
        step = random_step(generator)
        engine.run(step)
        found = engine.graphs[step.key]
        read = inputs.setdefault(found.graph, list(vars(found.step).values()))
        new = vars(step).values()
        assert any(torch.equal(old.cpu(), x) for old, x in zip(read, new, strict=True))


def test_a_shape_is_captured_once_and_runs_each_new_step(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, generator = stand_in(monkeypatch), torch.Generator().manual_seed(1)
    first: list[int] = []
    for _ in range(4):
        step = random_step(generator)
        ids, _ = engine.run(step).tolist()
        (found,) = engine.graphs.values()
        places = [x.data_ptr() for x in vars(found.step).values()]
        first = first or places
        assert ids == summed(step)[0].tolist(), "the graph read another step"
        assert places == first


@pytest.mark.catches("mask-of-the-capture")
def test_the_mask_is_an_input_like_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, generator = stand_in(monkeypatch), torch.Generator().manual_seed(2)
    for _ in range(4):
        step = random_step(generator)
        (ids, seen), right = engine.run(step).tolist(), summed(step).tolist()
        assert seen == right[1] or ids != right[0], "new ids under an old mask"


def test_a_step_on_the_host_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, generator = stand_in(monkeypatch), torch.Generator().manual_seed(3)
    steps = [random_step(generator) for _ in range(3)]
    right = [summed(step).tolist() for step in steps]
    assert [engine.run(step).tolist() for step in (*steps, steps[0])] == [*right, right[0]]


@pytest.mark.catches("warm-up-on-zeros")
def test_a_capture_writes_nowhere_but_where_the_next_step_does() -> None:
    engine, generator = new_engine(batch=2), torch.Generator().manual_seed(4)
    for table in (engine.cache.keys, engine.cache.values):
        table.copy_(torch.randn(table.shape, generator=generator))
    before = [table.clone() for table in (engine.cache.keys, engine.cache.values)]
    step = blank(2, 1, T_MAX)
    step.input_ids.copy_(torch.tensor([[5], [6]]))
    step.slots.copy_(torch.tensor([[3], [T_MAX + 7]]))
    step.last_rows[1] = 1
    step.mask.fill_(True)
    engine.capture(step)
    for table, old in zip((engine.cache.keys, engine.cache.values), before, strict=True):
        old[:, 0, 3], old[:, 1, 7] = table[:, 0, 3], table[:, 1, 7]
        assert torch.equal(table, old), "the warm-up wrote over somebody's keys"


def test_an_eager_engine_captures_nothing() -> None:
    engine, requests = new_engine(eager=True), some_requests(3, seed=22)
    assert answers(engine, requests) == [alone(request) for request in requests]
    assert not engine.graphs


def test_a_shape_is_warmed_up_and_captured_on_the_engines_stream_and_in_its_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, seen = new_engine(batch=2), []
    backend = engine.backend

    def watched(step: MaskedStep) -> Tensor:
        seen.append((backend.is_current_stream_capturing(), backend.current_stream()))
        return summed(step)

    monkeypatch.setattr(engine, "forward", watched)
    outside, collecting = backend.current_stream(), gc.isenabled()
    found = engine.capture(decode_step((1, 2), (1, 1), T_MAX))
    captures = [capturing for capturing, _ in seen]
    assert captures[:1] == [False], "the capture came without a warm-up"
    assert captures.count(True) == 1, "capture once"
    assert captures[-1], "the capture comes after the warm-up"
    on_its_stream = [stream == engine.stream for _, stream in seen]
    assert all(on_its_stream), "what is set up for one stream is not set up for another"
    assert backend.current_stream() == outside
    assert gc.isenabled() == collecting
    in_its_pool = found.graph.pool() == engine.pool
    assert in_its_pool, "every shape takes memory of its own"


@EMULATED
@pytest.mark.catches("unordered-warm-up")
def test_the_warm_up_waits_for_whoever_wrote_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator has no races, but it logs what ran on which stream, and who waited for whom."""
    engine, step = stand_in(monkeypatch), decode_step((1, 2), (1, 1), T_MAX)
    with logged() as log:
        engine.capture(step)
    assert len({work.stream for work in log.works}) > 1, "nothing ran on the engine's stream"
    races = log.races()
    assert races == [], "nothing orders the warm-up after the copies into its inputs"


@EMULATED
def test_a_step_is_ordered_with_the_capture_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = stand_in(monkeypatch)
    with logged() as log:
        for tokens in ((1, 2), (3, 4)):
            engine.run(decode_step(tokens, (1, 1), T_MAX))
    races = log.races()
    assert races == []


def test_a_graph_knows_how_long_its_warm_up_and_capture_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By every clock each step takes a second longer than it does."""
    engine, steps = new_engine(batch=1), list[MaskedStep]()

    def slow(step: MaskedStep) -> Tensor:
        steps.append(step)
        return summed(step)

    for name in ("perf_counter", "monotonic", "time"):
        for unit, second in (("", 1), ("_ns", 10**9)):
            clock = getattr(time, name + unit)
            late = lambda clock=clock, second=second: clock() + len(steps) * second  # noqa: E731
            monkeypatch.setattr(time, name + unit, late)
    monkeypatch.setattr(engine, "forward", slow)
    began = time.perf_counter()
    took_us = engine.capture(decode_step([1], [1], T_MAX)).took_us
    outside_us = (time.perf_counter() - began) * 1e6
    assert len(steps) * 1e6 <= took_us, "warm-up and capture, in microseconds"
    assert took_us <= outside_us + 100  # by another clock, perhaps


@EMULATED
def test_no_garbage_is_collected_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, enabled = new_engine(batch=1), []

    def watched(step: MaskedStep) -> Tensor:
        if engine.backend.is_current_stream_capturing():
            enabled.append(gc.isenabled())
        return summed(step)

    monkeypatch.setattr(engine, "forward", watched)
    engine.capture(decode_step([1], [1], T_MAX))
    assert enabled == [False]


# ---------------------------------------------------------------- a whole batch


@pytest.mark.parametrize(("prompt", "new"), [(6, 3), (8, 1), (1, 8), (0, 3), (3, 0), (3, -1)])
def test_a_request_that_no_row_holds_is_refused(prompt: int, new: int) -> None:
    with pytest.raises(ValueError):
        new_engine(batch=1, t_max=8).check(Request("r", [1] * prompt, new))


@pytest.mark.parametrize(("prompt", "new"), [(5, 3), (1, 7), (7, 1), (1, 1)])
def test_a_request_that_fills_its_row_is_served(prompt: int, new: int) -> None:
    new_engine(batch=1, t_max=8).check(Request("r", [1] * prompt, new))


@pytest.mark.parametrize(
    ("seed", "eager"), [(0, True), (1, True), (1, False)], ids=["0-eager", "1-eager", "1-graphs"]
)
def test_every_request_gets_the_answer_that_it_gets_alone(seed: int, *, eager: bool) -> None:
    requests = some_requests(6, 60 + seed, longest=9)
    assert answers(new_engine(eager=eager), requests) == [alone(request) for request in requests]


def instead(monkeypatch: pytest.MonkeyPatch, note: Callable[[MaskedStep], object]) -> StaticEngine:
    """An engine of two rows that computes nothing: each step is noted, and gives tokens 1 and 2."""
    engine = new_engine(batch=2)
    monkeypatch.setattr(engine, "run", lambda step: (note(step), torch.tensor([1, 2]))[1])
    return engine


@pytest.mark.catches("ended-rows-go-on")
def test_a_row_that_has_ended_keeps_out_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 0 is full when it ends, and row 1 goes on for long. Nothing is computed."""
    slots = list[int]()
    engine = instead(monkeypatch, lambda step: slots.append(int(step.slots[0].max())))
    engine._serve([Request("full", [3] * 17, 3), Request("long", [5], 18)], lambda *_: None)
    assert max(slots) < T_MAX, f"row 0 wrote to slot {max(slots)}, which is in row 1"


def test_a_row_that_has_ended_goes_on_with_no_context(monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = list[list[int]]()
    engine = instead(monkeypatch, lambda step: contexts.append(step.context_lens.tolist()))
    engine._serve([Request("short", (3, 4), 2), Request("long", (5,), 4)], lambda *_: None)
    assert contexts == [[2, 1], [3, 2], [0, 3], [0, 4]]


def test_a_batch_ends_when_all_its_answers_have_whatever_they_were_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, steps = new_engine(batch=2), list[MaskedStep]()

    def noted(step: MaskedStep) -> Tensor:
        steps.append(step)
        return torch.tensor([len(steps), 9])

    monkeypatch.setattr(engine, "run", noted)
    stops = [Request("third", (3, 4), 9, eos_ids=(3,)), Request("first", (5,), 12, eos_ids=(9,))]
    states = engine._serve(stops, lambda *_: None)
    assert [state.output for state in states] == [[1, 2, 3], [9]]
    assert len(steps) == 3, "a step after the last answer has ended is for nobody"


def test_a_token_is_told_before_the_next_step_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for an answer reads along, and its times are those of its tokens."""
    events = list[str]()
    engine = instead(monkeypatch, lambda step: events.append(f"step of {step.mask.shape[1]}"))
    requests = [Request("short", (3, 4), 1), Request("long", (5,), 3)]
    engine._serve(requests, lambda row, token: events.append(f"{token} to row {row}"))
    one = ["step of 1", "2 to row 1"]
    assert events == ["step of 2", "1 to row 0", "2 to row 1", *one, *one]


@pytest.mark.parametrize("first", [True, False], ids=["above", "below"])
def test_a_full_row_and_a_long_one_both_get_what_they_get_alone(*, first: bool) -> None:
    full = Request("full", tuple(range(17)), 3)
    requests = [full, Request("long", (5,), 18)]
    requests = requests if first else requests[::-1]
    engine = new_engine(batch=2, eager=True)
    assert answers(engine, requests) == [alone(request) for request in requests]


def test_a_row_that_ends_at_a_token_tells_nothing_after_it() -> None:
    request = Request("r", (5, 6, 7), 6)
    answer, _ = alone(request)
    stop = next(i for i in range(1, 6) if answer[i] not in answer[:i])
    requests = [replace(request, eos_ids=(answer[stop],)), Request("s", (9, 8), 7)]
    told: list[tuple[int, int]] = []
    steps: list[MaskedStep] = []
    engine = new_engine(batch=2, eager=True)
    run = engine.run
    engine.run = lambda step: (steps.append(step), run(step))[1]  # type: ignore[method-assign]
    states = engine._serve(requests, lambda row, token: told.append((row, token)))
    assert all(isinstance(state, RequestState) for state in states)
    assert [state.finish_reason for state in states] == ["stop", "length"]
    assert [state.request for state in states] == requests
    for row, state in enumerate(states):
        assert [token for at, token in told if at == row] == state.output == alone(requests[row])[0]
    assert len(steps) == 7, "a step for each token of the longest answer"


# ---------------------------------------------------------------- what it reads


def counted(requests: Sequence[tuple[int, int]], t_max: int) -> MaskedColumns:
    """Step by step, row by row, column by column."""
    needed = beyond = ended = 0
    for step in range(1, max(new for _, new in requests)):
        for prompt, new in requests:
            context = prompt + step
            for column in range(t_max):
                if step >= new:
                    ended += 1
                elif column < context:
                    needed += 1
                else:
                    beyond += 1
    return MaskedColumns(needed, beyond, ended)


@pytest.mark.catches("ended-rows-are-free")
def test_a_row_that_has_ended_is_read_until_the_longest_has() -> None:
    assert columns_of_batch([(4, 2), (1, 9), (5, 1)], 10).ended > 0


@pytest.mark.catches("the-first-token-is-decoded")
@pytest.mark.parametrize("seed", range(6))
def test_the_closed_form_counts_what_counting_counts(seed: int) -> None:
    rng = random.Random(seed)
    requests = tuple((rng.randint(1, 9), rng.randint(1, 9)) for _ in range(rng.randint(1, 5)))
    t_max = rng.randint(18, 22)
    assert columns_of_batch(requests, t_max) == counted(requests, t_max)


def test_wider_rows_take_no_more_lines_of_python_than_narrow_ones() -> None:
    def count(t_max: int) -> int:
        return lines_run(lambda: columns_of_batch([(3, 4), (8, 2)], t_max))

    narrow, wide = count(20), count(4096)
    assert wide < 2 * narrow, "lines of Python that ran for rows of 4,096 columns, and of 20"


def test_a_batch_of_single_tokens_reads_nothing_and_numbers_stay_whole() -> None:
    assert columns_of_batch([(3, 1), (8, 1)], 9) == MaskedColumns(0, 0, 0)
    read = columns_of_batch([(3, 4)], 9)
    assert all(isinstance(count, int) for count in vars(read).values())
