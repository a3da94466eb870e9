"""sim/sampling.py: the draws of the CUDA wing, in numpy, in every mode."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.engine.batch import Request, SchedulerLimits
from mini_engine.engine.sampling import GREEDY, SamplingParams
from mini_engine.sim import sampling
from tests.sim.test_runner import MODES, workloads
from tests.support.engine_helpers import VOCAB, alone, sim_engine, tokens_by_id

some_params = st.one_of(
    st.just(GREEDY),
    st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.6, 1.0, 3.0]),
        top_k=st.sampled_from([0, 3, VOCAB + 5]),
        top_p=st.sampled_from([1.0, 0.9, 0.5]),
        min_p=st.sampled_from([0.0, 0.05]),
        seed=st.integers(0, 2**32 - 1),
    ),
)


@given(workloads(), st.lists(some_params, min_size=6, max_size=6), st.sampled_from(MODES))
def test_a_seed_gives_one_text_in_any_batch_mode_block_size_and_after_preemption(
    workload: tuple[list[Request], SchedulerLimits], params: list[SamplingParams], mode: str
) -> None:
    requests, limits = workload
    requests = [replace(r, sampling=p) for r, p in zip(requests, params, strict=False)]
    done = tokens_by_id(sim_engine(mode, [1, 3, 8], limits, sampling=True).run(requests))
    assert done == {
        r.request_id: alone(tuple(r.prompt), r.max_new_tokens, r.sampling) for r in requests
    }


def test_a_runner_that_is_greedy_refuses_a_request_that_is_not() -> None:
    with pytest.raises(ValueError, match=r"temperature is 0.8, .*sampling=True"):
        sim_engine("NONE", ()).run([Request("a", (1, 2), 3, sampling=SamplingParams(0.8))])


@given(st.integers(0, 2**32 - 1), st.integers(1, 2**20), st.integers(1, 300))
def test_the_words_of_the_noise_are_those_of_the_other_wing(
    seed: int, context_len: int, vocab: int
) -> None:
    torch = pytest.importorskip("torch")
    from mini_engine.cuda.sampling import noise_words

    signed = torch.tensor([seed - 2**32 * (seed >= 2**31)], dtype=torch.int32)
    theirs = noise_words(signed, torch.tensor([context_len]), vocab)
    assert sampling.noise_words(seed, context_len, vocab).tolist() == theirs[0].tolist()


def test_the_cutoffs_are_those_of_the_other_wing() -> None:
    torch = pytest.importorskip("torch")
    from mini_engine.cuda.sampling import SeededSampler, cutoffs_of

    rng = np.random.default_rng(3)
    for _ in range(100):
        vocab = int(rng.integers(1, 40))
        logits = (3 * rng.normal(size=vocab)).round(int(rng.integers(0, 5))).astype(np.float32)
        params = SamplingParams(
            temperature=float(rng.uniform(0.3, 3)),
            top_k=int(rng.integers(0, vocab + 2)),
            top_p=float(rng.choice([1.0, rng.uniform(0.05, 0.99)])),
            min_p=float(rng.choice([0.0, rng.uniform(0.01, 0.9)])),
        )
        sampler = SeededSampler(1, torch.device("cpu"))
        sampler.set_rows([params])
        filters = sampler.temperatures, sampler.top_ks, sampler.top_ps, sampler.log_min_ps
        theirs = float(cutoffs_of(torch.from_numpy(logits)[None], *filters))
        ours = sampling.cutoff(logits, params.temperature, params.top_k, params.top_p, params.min_p)
        assert ours == theirs
