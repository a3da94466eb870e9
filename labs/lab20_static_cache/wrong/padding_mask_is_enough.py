"""padding-mask-is-enough: hides the padding of each prompt, and thinks that this is all there is to hide."""


def prompt_step(prompts, t_max):
    longest = max(len(prompt) for prompt in prompts)
    positions = torch.arange(longest, dtype=torch.int32).repeat(len(prompts), 1)
    rows = torch.arange(len(prompts), dtype=torch.int32)
    lengths = torch.tensor([len(prompt) for prompt in prompts], dtype=torch.int32)
    ids = [[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts]
    return MaskedStep(
        input_ids=torch.tensor(ids, dtype=torch.int32),
        positions=positions,
        slots=rows[:, None] * t_max + positions,
        context_lens=lengths,
        last_rows=rows * longest + lengths - 1,
        mask=(positions < lengths[:, None])[:, None].repeat(1, longest, 1),
    )
