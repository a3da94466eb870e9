"""head.py and pick.py: the token, and the step after it."""

from __future__ import annotations

import pytest
import torch

from mini_engine.cuda.kernels import head, pick
from mini_engine.cuda.kernels.linear import product_reference
from tests.support.kernel_cases import NAN, assert_close

BF16 = torch.bfloat16


def partials(rows: int, parts: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((rows, parts), NAN), torch.full((rows, parts), -1, dtype=torch.int32)


def token_of(values: torch.Tensor, indices: torch.Tensor) -> list[int]:
    tokens = torch.full((len(values),), -1)
    pick.pick_tokens(tokens, values, indices)
    return tokens.tolist()


@pytest.mark.parametrize(("rows", "vocab", "width"), [(1, 21, 256), (3, 14, 500), (2, 5, 768)])
def test_the_head_finds_the_argmax_of_the_logits_it_would_write(
    rows: int, vocab: int, width: int
) -> None:
    torch.manual_seed(vocab)
    x, norm_weight = torch.randn(rows, width).to(BF16), (torch.rand(width) + 0.5).to(BF16)
    weight = (torch.randn(vocab, width) / width**0.5).to(BF16)
    values, indices = partials(rows, head.num_programs(vocab, width))
    logits = torch.full((rows, vocab), NAN)
    head.norm_lm_head(values, indices, logits, x, norm_weight, weight, 1e-6)
    assert_close(logits, product_reference(x, norm_weight, weight, None, 1e-6), terms=4)
    assert token_of(values, indices) == logits.argmax(dim=-1).tolist()


def test_of_equal_logits_the_lowest_index_wins_in_a_tile_between_tiles_and_programs() -> None:
    weight = torch.zeros(13, 256, dtype=BF16)
    weight[[5, 9, 12]] = 1.0  # one row a tile: 13 tiles in 4 programs
    values, indices = partials(1, head.num_programs(13, 256))
    x, norm_weight = torch.ones(1, 256, dtype=BF16), torch.ones(256, dtype=BF16)
    head.norm_lm_head(values, indices, torch.empty(1, 13), x, norm_weight, weight, 0.0)
    assert token_of(values, indices) == [5]


def test_a_row_of_nan_still_gives_a_token_of_the_vocabulary() -> None:
    """A poisoned row must not turn into an address outside of the embedding."""
    torch.manual_seed(2)
    x, weight = torch.randn(3, 256).to(BF16), torch.randn(20, 256).to(BF16)
    x[1], weight[:9] = NAN, NAN
    values, indices = partials(3, head.num_programs(20, 256))
    logits = torch.empty(3, 20)
    head.norm_lm_head(values, indices, logits, x, torch.ones(256, dtype=BF16), weight, 1e-6)
    tokens = token_of(values, indices)
    assert tokens[0] == 9 + int(logits[0, 9:].argmax())
    assert tokens[1] == 0
    assert tokens[2] == 9 + int(logits[2, 9:].argmax())


def test_the_best_of_many_partials_is_found_over_several_reads() -> None:
    torch.manual_seed(0)
    values = torch.randint(0, 50, (3, 2500)).float()  # many ties
    values[2] = 1.0  # and nothing else
    indices = torch.randperm(7500).view(3, 2500).int()
    for row, token in enumerate(token_of(values, indices)):
        assert token == int(indices[row][values[row] == values[row].max()].min())


# ---- the step after


def test_a_picked_token_advances_its_row_and_a_padded_row_stays() -> None:
    values = torch.tensor([[1.0, 3.0], [5.0, 2.0], [0.0, 0.0]])
    indices = torch.tensor([[4, 8], [15, 16], [2, 3]], dtype=torch.int32)
    block_table = torch.tensor([[7, 2, 9], [4, 0, 0], [0, 0, 0]], dtype=torch.int32)
    context_lens = torch.tensor([8, 3, 0], dtype=torch.int32)  # block_size 4: row 0 enters block 9
    positions = torch.tensor([7, 2, 0], dtype=torch.int32)
    slot_mapping = torch.tensor([11, 18, 0], dtype=torch.int32)
    tokens, input_ids = torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int32)
    step = (input_ids, positions, context_lens, slot_mapping)
    pick.pick_and_advance(tokens, *step, values, indices, block_table, 4, 12)
    assert tokens.tolist() == [8, 15, 2]
    assert input_ids.tolist() == [8, 15, 0]
    assert positions.tolist() == [8, 3, 0]
    assert context_lens.tolist() == [9, 4, 0]
    assert slot_mapping.tolist() == [36, 19, 0]


def test_a_row_at_the_end_of_its_room_stays_there() -> None:
    values, indices = torch.ones(1, 1), torch.full((1, 1), 5, dtype=torch.int32)
    table = torch.tensor([[7, 2]], dtype=torch.int32)
    vectors = [torch.tensor([n], dtype=torch.int32) for n in (1, 6, 7, 10)]
    for context in (8, 8):
        pick.pick_and_advance(torch.zeros(1).int(), *vectors, values, indices, table, 4, 8)
        input_ids, positions, context_lens, slots = (int(v) for v in vectors)
        assert (input_ids, positions, context_lens, slots) == (5, 7, context, 2 * 4 + 3)
