"""cuda/attention.py: three ways, one answer; and nothing but a request's own context in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from mini_engine.cuda.attention import DecodeAttention, HostAttention, RaggedAttention  # noqa: E402
from tests.support.torch_helpers import (  # noqa: E402
    DEVICES,
    MAX_BLOCKS,
    TOLERANCE,
    batch_of,
    step,
    tiny_weights,
    warm_model,
)

CHUNKS = st.lists(
    st.integers(1, 8).flatmap(lambda n: st.tuples(st.integers(0, 31 - n), st.just(n))),
    min_size=1,
    max_size=3,
).filter(lambda chunks: sum(n for _, n in chunks) <= 20)


@pytest.mark.parametrize("device", DEVICES)
@given(chunks=CHUNKS, padding=st.tuples(st.integers(0, 4), st.integers(0, 1)))
def test_static_and_host_side_attention_agree_on_every_batch(
    device: str, chunks: list[tuple[int, int]], padding: tuple[int, int]
) -> None:
    batch, weights = batch_of(chunks), tiny_weights(device)
    size = batch.num_tokens + padding[0], batch.num_reqs + padding[1]
    host, _ = step(
        warm_model(weights), batch, HostAttention(batch.query_lens, batch.context_lens, 4), *size
    )
    static, _ = step(warm_model(weights), batch, RaggedAttention(MAX_BLOCKS, 4), *size)
    torch.testing.assert_close(host, static, atol=TOLERANCE, rtol=0)
    if set(batch.query_lens) == {1}:
        size = (batch.num_reqs + padding[1],) * 2
        decode, _ = step(warm_model(weights), batch, DecodeAttention(MAX_BLOCKS, 4), *size)
        torch.testing.assert_close(host, decode, atol=TOLERANCE, rtol=0)
