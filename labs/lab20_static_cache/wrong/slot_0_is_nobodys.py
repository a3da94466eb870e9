"""slot-0-is-nobodys: lets rows that have ended write to slot 0, as padded rows of a paged cache do."""


def decode_step(tokens, contexts, t_max):
    lengths = torch.tensor(contexts, dtype=torch.int32)
    rows = torch.arange(len(contexts), dtype=torch.int32)
    positions = (lengths - 1).clamp(min=0)
    return MaskedStep(
        input_ids=torch.tensor(tokens, dtype=torch.int32)[:, None],
        positions=positions[:, None],
        slots=((rows * t_max + positions) * (lengths > 0))[:, None],
        context_lens=lengths,
        last_rows=rows,
        mask=(torch.arange(t_max) < lengths[:, None])[:, None],
    )
