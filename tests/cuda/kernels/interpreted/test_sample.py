"""sample.py: cutoffs without a sort, and draws, against the references in gumbel.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl

from mini_engine.cuda.fused import FusedModel
from mini_engine.cuda.gumbel import cutoffs_reference, gumbel, scores_reference
from mini_engine.cuda.inputs import StepInputs
from mini_engine.cuda.kernels import pick, sample
from mini_engine.cuda.model import KVCache, Model
from mini_engine.cuda.sampling import SeededSampler
from mini_engine.cuda.weights import random_weights
from mini_engine.engine.sampling import SamplingParams
from tests.support.kernel_cases import NAN
from tests.support.torch_helpers import TINY

CPU = torch.device("cpu")
ROWS = [
    SamplingParams(),
    SamplingParams(0.7, seed=1),
    SamplingParams(1.0, top_k=1, seed=2**32 - 1),
    SamplingParams(0.8, top_k=7, seed=3),
    SamplingParams(1.3, top_k=3000, seed=4),
    SamplingParams(0.6, top_p=0.95, seed=5),
    SamplingParams(1.0, top_p=1e-6, seed=6),
    SamplingParams(1.0, top_p=0.99, seed=7),
    SamplingParams(2.0, min_p=0.1, seed=8),
    SamplingParams(1.0, min_p=1.0, seed=9),
    SamplingParams(0.9, top_k=40, top_p=0.8, min_p=0.02, seed=10),
]


def sampler_of(rows: list[SamplingParams]) -> SeededSampler:
    made = SeededSampler(len(rows), CPU)
    made.set_rows(rows)
    return made


def found_cutoffs(logits: torch.Tensor, sampler: SeededSampler) -> torch.Tensor:
    temperatures, top_ps, log_min_ps, top_ks, _ = sampler.rows(len(logits))
    return sample.find_cutoffs(logits, temperatures, top_ks, top_ps, log_min_ps)


def kept(logits: torch.Tensor, cutoffs: torch.Tensor) -> torch.Tensor:
    return logits.float() >= cutoffs[:, None]


@pytest.mark.parametrize("vocab", [5, 1500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_same_tokens_are_kept_as_after_a_sort(vocab: int, dtype: torch.dtype) -> None:
    """bf16: many logits are equal. The masses are sums of float32 in another order than the
    reference's float64: with these seeds no share of p falls between the two."""
    torch.manual_seed(vocab)
    logits, sampler = (3 * torch.randn(len(ROWS), vocab)).to(dtype), sampler_of(ROWS)
    temperatures, top_ps, log_min_ps, top_ks, _ = sampler.rows(len(ROWS))
    expected = cutoffs_reference(logits, temperatures, top_ks, top_ps, log_min_ps)
    assert torch.equal(kept(logits, found_cutoffs(logits, sampler)), kept(logits, expected))


def test_equal_logits_stay_or_go_together_and_what_is_no_number_is_never_kept() -> None:
    inf = float("inf")
    logits = torch.tensor(
        [
            [1.0, 3.0, 3.0, 3.0, 0.0],  # the second largest has two equals
            [2.0, 2.0, 2.0, 2.0, 2.0],
            [NAN, 1.0, -inf, 0.0, NAN],
            [NAN, -inf, NAN, -inf, NAN],
            [-0.0, 1e-38, 0.0, -1e-38, -inf],
        ]
    )
    rows = [
        *(SamplingParams(1.0, top_k=2), SamplingParams(1.0, top_p=0.3)),
        *(SamplingParams(1.0, top_k=4), SamplingParams(1.0, top_k=2), SamplingParams(1.0, top_k=1)),
    ]
    expected = [[1, 2, 3], [0, 1, 2, 3, 4], [1, 3], [], [1]]
    cutoffs = found_cutoffs(logits, sampler_of(rows))
    assert [torch.nonzero(row)[:, 0].tolist() for row in kept(logits, cutoffs)] == expected


def test_a_row_is_read_again_only_until_its_logits_are_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the true size of a vocabulary; a row without filters is not read at all."""
    passes, whole = [], sample.tail

    def counted(*given: object) -> object:
        passes.append(given)
        return whole(*given)

    monkeypatch.setattr(sample, "tail", counted)
    torch.manual_seed(0)
    logits = 3 * torch.randn(1, 151_936)
    for row, most in ((ROWS[1], 0), (ROWS[3], 23), (ROWS[5], 23)):
        passes.clear()
        found_cutoffs(logits, sampler_of([row]))
        assert len(passes) <= most
        assert bool(passes) == bool(most)


@pytest.mark.parametrize("vocab", [5, 1100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_best_score_of_each_part_is_that_of_the_reference(
    vocab: int, dtype: torch.dtype
) -> None:
    """Two float32 logarithms of two libraries: noise of at most 23, each to a few units of the
    last place, times a temperature of at most 2."""
    torch.manual_seed(vocab)
    logits, sampler = (3 * torch.randn(len(ROWS), vocab)).to(dtype), sampler_of(ROWS)
    rows = temperatures, *_, seeds = sampler.rows(len(ROWS))
    lens = torch.randint(1, 5000, (len(ROWS),), dtype=torch.int32)
    cutoffs = found_cutoffs(logits, sampler)
    parts = sample.num_parts(vocab)
    values, indices = torch.full((len(ROWS), parts), NAN), torch.full((len(ROWS), parts), -1).int()
    sample.draw(values, indices, logits, lens, *rows)
    scores = scores_reference(logits, cutoffs, temperatures, seeds, lens)
    for part, ours in enumerate(scores.split(sample.DRAW_BLOCK, dim=1)):
        torch.testing.assert_close(values[:, part], ours.amax(-1), atol=2e-5, rtol=0)
        some = ours.amax(-1) > -torch.inf
        assert torch.equal(
            indices[some, part], (ours.argmax(-1) + part * sample.DRAW_BLOCK)[some].int()
        )
    tokens = torch.full((len(ROWS),), -1)
    pick.pick_tokens(tokens, values, indices)
    assert tokens.tolist() == sampler(logits, lens).tolist() == scores.argmax(-1).tolist()
    assert tokens[0] == logits[0].argmax()


def step_of(rows: int) -> StepInputs:
    """Contexts of several lengths, the last row of more than one padded."""
    contexts = torch.randint(1, 10, (rows,))
    table = 1 + torch.randperm(3 * rows).view(rows, 3)
    if rows > 1:
        contexts[-1], table[-1] = 0, 0
    positions = (contexts - 1).clamp(min=0)
    slots = table.gather(1, (positions // 4)[:, None])[:, 0] * 4 + positions % 4
    slots = torch.where(contexts > 0, slots, 0)
    ids = torch.randint(TINY.vocab_size, (rows,))
    arrays = (ids, positions, slots, contexts.clamp(max=1), contexts, torch.arange(rows), table)
    return StepInputs(*[array.int() for array in arrays])


@pytest.mark.parametrize("rows", [3, 5])
def test_a_fused_step_draws_what_the_plain_one_draws_and_moves_its_counter_on(rows: int) -> None:
    """Up to 4 rows from the logits of our head, then from a library's. The last row is padding."""
    weights = random_weights(replace(TINY, num_layers=1, head_dim=32), CPU, torch.float32, seed=3)
    params = [SamplingParams(2.0, seed=1), SamplingParams(1.5, top_k=9, top_p=0.9, seed=2)] * 2
    sampler = sampler_of([*params[: rows - 1], SamplingParams()])
    cache = KVCache.allocate(weights.config, 3 * rows + 1, 4, CPU, torch.float32)
    fused, plain = FusedModel(weights, cache, kernels_per_layer=5), Model(weights, cache)
    torch.manual_seed(rows)
    ours = step_of(rows)
    ours.input_ids[-1] = 0
    theirs = StepInputs(**{name: tensor.clone() for name, tensor in vars(ours).items()})
    for _ in range(2):
        hidden = torch.randn(rows, weights.config.hidden_size)
        tokens = [m.next_step(hidden, i, sampler)[1] for m, i in ((fused, ours), (plain, theirs))]
        assert tokens[0].tolist() == tokens[1].tolist()
        for name, tensor in vars(ours).items():
            assert torch.equal(tensor, getattr(theirs, name)), name


def test_the_kernels_noise_is_the_references_at_both_ends_of_the_words() -> None:
    """Where 1 - u is 1, and where it is 0: the ends of the formula, and each side of them."""
    words = [0, 1, 2, 255, 2**7, 2**8, 2**9, 2**20, 2**31, 2**32 - 300, 2**32 - 129, 2**32 - 1]
    torch.manual_seed(0)
    words = torch.tensor([*words, *torch.randint(2**32, (500,)).tolist()])
    ours = torch.full((512,), NAN)
    noise_kernel[(1,)](ours, (words - 2**32 * (words >= 2**31)).int(), SIZE=512)
    torch.testing.assert_close(ours, gumbel(words), atol=5e-6, rtol=0)


@triton.jit
def noise_kernel(out, words, SIZE: tl.constexpr):  # noqa: N803 (as Triton writes it)
    at = tl.arange(0, SIZE)
    tl.store(out + at, sample.gumbel(tl.load(words + at).to(tl.uint32, bitcast=True)))
