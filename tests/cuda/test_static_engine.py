"""The engine without pages writes what the paged engine writes; and what a mask may and may not."""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mini_engine.cli import main  # noqa: E402
from mini_engine.cuda.generate import LEFT_FREE, open_tokenizer  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.model import Model  # noqa: E402
from mini_engine.cuda.runner import TorchRunner  # noqa: E402
from mini_engine.cuda.static_cache import MaskedAttention, StaticCache, decode_step, prompt_step  # noqa: E402
from mini_engine.cuda.static_engine import StaticEngine  # noqa: E402
from mini_engine.cuda.weights import Weights, loaded_bytes, random_weights  # noqa: E402
from mini_engine.dispatch.dispatcher import GraphDispatcher  # noqa: E402
from mini_engine.engine.batch import Request  # noqa: E402
from mini_engine.engine.engine import Engine  # noqa: E402
from mini_engine.engine.generation import SHIPPED  # noqa: E402
from mini_engine.engine.sampling import GREEDY, SamplingParams  # noqa: E402
from mini_engine.model.config import ModelConfig  # noqa: E402
from mini_engine.predict.capacity import kv_bytes_per_token  # noqa: E402
from tests.support.torch_helpers import DEVICES, FAMILIES, LIMITS, TINY, torch_model  # noqa: E402

T_MAX = LIMITS.max_model_len


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    gc.freeze()  # each capture collects garbage: it need not look at what was imported
    with torch.inference_mode():
        yield
    gc.unfreeze()


@cache
def weights_of(device: str, family: str = "qwen3") -> Weights:
    return random_weights(FAMILIES[family], torch.device(device), torch.float32, seed=2)


def static_engine(
    device: str = "cpu",
    batch: int = 3,
    t_max: int = T_MAX,
    family: str = "qwen3",
    *,
    eager: bool = False,
    sampling: bool = False,
) -> StaticEngine:
    weights = weights_of(device, family)
    table = StaticCache.allocate(
        weights.config, batch, t_max, weights.embed.device, weights.embed.dtype
    )
    model = Model(weights, table.blocks())
    return StaticEngine(model, table, graphs_for(device), eager=eager, sampling=sampling)


def some_requests(seed: int, count: int, *, drawn: bool = False) -> list[Request]:
    """Prompts of 1 to 12 tokens, 1 to 12 new ones or fewer: one token in five ends a text."""
    rng = random.Random(seed)
    return [
        Request(
            f"request {i}",
            [rng.randrange(TINY.vocab_size) for _ in range(rng.randint(1, 12))],
            rng.randint(1, 12),
            eos_ids=frozenset(rng.sample(range(TINY.vocab_size), 7)),
            sampling=SamplingParams(temperature=rng.choice([0, 0.7, 1.3]), seed=rng.randrange(99))
            if drawn
            else GREEDY,
        )
        for i in range(count)
    ]


def paged(requests: list[Request], device: str = "cpu", family: str = "qwen3") -> list[object]:
    """What the paged engine writes, eagerly: tokens, and why each request ended."""
    weights, none = weights_of(device, family), GraphDispatcher("NONE", (), LIMITS.max_num_seqs)
    model = torch_model(weights, LIMITS.num_blocks, LIMITS.block_size)
    runner = TorchRunner(model, LIMITS, none, graphs_for(device), sampling=True)
    done = {c.request_id: c for c in Engine(runner, LIMITS, none).run(requests)}
    return [(done[r.request_id].tokens, done[r.request_id].finish_reason) for r in requests]


def static(engine: StaticEngine, requests: list[Request]) -> list[object]:
    return [(c.tokens, c.finish_reason) for c in engine.generate(requests)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("eager", [True, False], ids=["eager", "graphs"])
@pytest.mark.parametrize("seed", range(2))
def test_it_writes_token_by_token_what_the_paged_engine_writes(
    device: str, seed: int, *, eager: bool
) -> None:
    """Ragged prompts, answers that end at different times, more requests than rows."""
    requests = some_requests(seed, 7, drawn=True)
    engine = static_engine(device, eager=eager, sampling=True)
    assert static(engine, requests) == paged(requests, device)
    assert bool(engine.graphs) is not eager


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_and_greedy_requests_too(family: str) -> None:
    requests = some_requests(9, 4)
    expected = paged(requests, family=family)
    assert static(static_engine(family=family, batch=4), requests) == expected


def test_a_second_workload_finds_its_graphs_and_not_the_first_ones_keys() -> None:
    engine, first = static_engine(batch=4), some_requests(1, 4)
    engine.generate(first)
    shapes = dict(engine.graphs)
    assert set(shapes) >= {(4, 1, T_MAX), (4, n := max(len(r.prompt) for r in first), n)}
    for seed in (2, 3):
        requests = some_requests(seed, 4)
        assert static(engine, requests) == paged(requests)
    assert all(engine.graphs[shape] is graph for shape, graph in shapes.items())


def test_prompts_of_one_token_and_a_decode_step_do_not_share_a_graph() -> None:
    """Both have ids of (B, 1), and one sees a column and the other T_max."""
    requests = [Request(str(i), [5 + i], 6) for i in range(2)]
    engine = static_engine(batch=2)
    assert static(engine, requests) == paged(requests)
    assert set(engine.graphs) == {(2, 1, 1), (2, 1, T_MAX)}


def test_a_row_can_be_filled_to_its_last_column() -> None:
    requests = [Request("full", [1, 2, 3], T_MAX - 3), Request("short", [4], 2)]
    assert static(static_engine(batch=2), requests) == paged(requests)


def test_what_nobody_may_see_can_hold_anything() -> None:
    requests = some_requests(4, 3)
    engine = static_engine()
    engine.cache.keys.fill_(torch.nan)
    engine.cache.values.fill_(torch.nan)
    assert static(engine, requests) == paged(requests)


def test_an_engine_captured_up_front_captures_nothing_later() -> None:
    requests = some_requests(5, 3)
    longest = max(len(request.prompt) for request in requests)
    engine = static_engine()
    for step in (prompt_step([[0] * longest] * 3, T_MAX), decode_step([0] * 3, [0] * 3, T_MAX)):
        engine.graphs[step.key] = engine.capture(step)
    before = dict(engine.graphs)
    assert static(engine, requests) == paged(requests)
    assert engine.graphs == before


def test_every_token_is_told_once_with_its_request() -> None:
    requests, told = some_requests(6, 5), [[] for _ in range(5)]
    done = static_engine(eager=True).generate(requests, lambda i, token: told[i].append(token))
    assert told == [list(c.tokens) for c in done]
    assert all(len(c.token_times_us) == len(c.tokens) for c in done)


@pytest.mark.parametrize(("prompt", "new"), [([], 1), ([1], 0), ([1] * 6, 3)])
def test_a_request_that_no_row_can_hold_is_refused_before_any_runs(
    prompt: list[int], new: int
) -> None:
    engine = static_engine(t_max=8)
    with pytest.raises(ValueError, match="8 columns at most"):
        engine.generate([Request("good", [1], 2), Request("bad", prompt, new)])
    assert not engine.graphs


@pytest.mark.parametrize(("batch", "t_max"), [(0, 8), (2, 0), (2, 33)])
def test_a_cache_longer_than_the_models_positions_is_refused(batch: int, t_max: int) -> None:
    with pytest.raises(ValueError, match="positions of tiny"):
        static_engine(batch=batch, t_max=t_max)


def test_a_drawn_request_needs_an_engine_that_samples() -> None:
    with pytest.raises(ValueError, match="sampling=True"):
        static_engine().generate([Request("r", [1], 2, sampling=SamplingParams(temperature=1))])


def test_fp8_is_refused_where_the_mask_would_read_bytes() -> None:
    step = decode_step([1], [1], 4)
    with pytest.raises(ValueError, match="fp8"):
        MaskedAttention(step.mask).attend(*[torch.zeros(1, 1, 2)] * 3, torch.ones(2, 1))


# ---------------------------------------------------------------- the command


def written(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    prompts = ("--prompt", "Return the", "--prompt", "If x is None, raise", "--prompt", "A")
    common = ("--backend", "cuda", "--plain", "--max-new-tokens", "6", "--temperature", "0.8")
    assert main(["generate", *common, *prompts, *words, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_generate_writes_the_same_with_either_cache(capsys: pytest.CaptureFixture[str]) -> None:
    paged = written(capsys, "--mode", "NONE")
    static = written(capsys, "--cache", "static")
    assert static["prompts"] == paged["prompts"]
    assert (static["mode"], static["graphs"], static["cache"]) == ("FULL", 2, "static")
    assert static["capture_us"] > 0


def test_rows_that_find_no_memory_wait_for_the_batch_before(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three prompts, and memory for two rows and the null block: the same text, and a line."""
    config = ModelConfig.from_folder(SHIPPED)
    longest = 6 + len(open_tokenizer(str(SHIPPED)).encode("If x is None, raise"))
    row = longest * kv_bytes_per_token(config, "fp32")
    free = (loaded_bytes(config, "fp32", None) + 3.5 * row) / (1 - LEFT_FREE)
    whole = written(capsys, "--cache", "static")
    monkeypatch.setattr("mini_engine.cuda.generate.free_bytes", lambda _: int(free))
    narrow = written(capsys, "--cache", "static")
    assert narrow["prompts"] == whole["prompts"]
    assert any(f"2 blocks of {longest} tokens, 3 were wanted" in note for note in narrow["notes"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--backend", "sim"], "add --backend cuda"),
        (["--kernels", "5"], "--kernels"),
        (["--kv-dtype", "fp8"], "--kv-dtype"),
        (["--steps-per-replay", "2"], "--steps-per-replay"),
        (["--capture-sizes", "1,2"], "--capture-sizes"),
        (["--mode", "PIECEWISE"], "use FULL or NONE"),
    ],
)
def test_what_makes_no_sense_with_a_static_cache_is_refused_in_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["generate", "--prompt", "x", "--backend", "cuda", "--cache", "static", *words]
    assert main(command) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line
