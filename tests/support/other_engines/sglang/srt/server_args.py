"""`sglang.srt.server_args`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ServerArgs:
    model_path: str
    skip_tokenizer_init: bool = False
    dtype: str = "auto"
    context_length: int | None = None
    max_running_requests: int | None = None
    mem_fraction_static: float | None = None
    disable_radix_cache: bool = False
    disable_cuda_graph: bool = False
    cuda_graph_max_bs_decode: int | None = None
