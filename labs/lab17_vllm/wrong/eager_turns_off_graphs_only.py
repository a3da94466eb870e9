"""eager-turns-off-graphs-only: takes --enforce-eager for the switch of CUDA graphs alone."""


def serve_command(setup, variant):
    if variant not in VARIANTS:
        raise ValueError(f"variant {variant!r}")
    words = ["vllm", "serve", setup.model, "--no-enable-prefix-caching"]
    words += ["--max-num-seqs", str(setup.max_num_seqs), "--port", str(setup.port)]
    words += ["--max-num-batched-tokens", str(setup.max_num_batched_tokens)]
    words += ["--max-model-len", str(setup.max_model_len)]
    switch = {"eager": "-cc.mode=NONE", "compiled": "--enforce-eager"}
    return words + ([switch[variant]] if variant in switch else [])
