"""eager-turns-off-graphs-only: takes --enforce-eager for the switch of CUDA graphs alone."""


def serve_command(setup, arm):
    if arm not in ARMS:
        raise ValueError(f"arm {arm!r}")
    words = ["vllm", "serve", setup.model, "--no-enable-prefix-caching"]
    words += ["--max-num-seqs", str(setup.max_num_seqs), "--port", str(setup.port)]
    words += ["--max-num-batched-tokens", str(setup.max_num_batched_tokens)]
    words += ["--max-model-len", str(setup.max_model_len)]
    switch = {"eager": "-cc.mode=NONE", "compiled": "--enforce-eager"}
    return words + ([switch[arm]] if arm in switch else [])
