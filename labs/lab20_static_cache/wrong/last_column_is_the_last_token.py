"""last-column-is-the-last-token: samples every prompt after the last column of the step."""


def prompt_step(prompts, t_max):
    longest = max(len(prompt) for prompt in prompts)
    positions = torch.arange(longest, dtype=torch.int32).repeat(len(prompts), 1)
    rows = torch.arange(len(prompts), dtype=torch.int32)
    lengths = torch.tensor([len(prompt) for prompt in prompts], dtype=torch.int32)
    ids = [[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts]
    triangle = torch.ones(longest, longest, dtype=torch.bool).tril()
    return MaskedStep(
        input_ids=torch.tensor(ids, dtype=torch.int32),
        positions=positions,
        slots=rows[:, None] * t_max + positions,
        context_lens=lengths,
        last_rows=rows * longest + longest - 1,
        mask=triangle.repeat(len(prompts), 1, 1),
    )
