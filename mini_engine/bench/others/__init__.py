"""Other engines, driven through their own Python interfaces and timed as a caller sees them.

Each `*_engine.py` is an adapter: `start(job)` loads the model and returns a `Session`
(protocol.py), which runs one batch of prompts and says when which token arrived. They run in a
process of their own (child.py), under any Python that has the engine. So nothing here imports more
than the standard library at its top. A new engine is one adapter and one entry in `KINDS`."""

from __future__ import annotations

from dataclasses import dataclass

OURS = "launch-bound"
EAGER = "-eager"  # behind a name: the same engine with its graphs switched off


@dataclass(frozen=True)
class Kind:
    """An engine: where its adapter is, and what somebody needs who does not have it."""

    adapter: str  # a module of this package
    package: str  # what `import` looks for, "" for a folder of scripts
    install: str  # one line
    written_for: str  # the versions whose interface the adapter was written to
    switch: str  # what -eager sets


KINDS = {
    OURS: Kind(
        "our_engine", "torch", "pip install 'torch>=2.11,<2.14'", "this one",
        'mode "NONE" instead of "FULL_DECODE_ONLY"',
    ),
    "nano-vllm": Kind(
        "nano_engine", "nanovllm",
        "pip install git+https://github.com/GeeeekExplorer/nano-vllm.git", "0.2",
        "enforce_eager=True",
    ),
    "gpt-fast": Kind(
        "gpt_fast_engine", "",
        "git clone https://github.com/meta-pytorch/gpt-fast, pip install sentencepiece tiktoken, "
        "then --against gpt-fast=FOLDER",
        "6ecad9b", "no torch.compile of decode_one_token",
    ),
    "vllm": Kind("vllm_engine", "vllm", "pip install vllm", "0.8 to 0.33",
                 "enforce_eager=True, which turns torch.compile off, too"),
    "sglang": Kind("sglang_engine", "sglang", "pip install 'sglang[all]'",
                   "commits 18bfdd1 (2025) to 001067f (2026)", "disable_cuda_graph=True"),
}  # fmt: skip
NAMES = tuple(name + end for name in KINDS for end in ("", EAGER))


def kind_of(name: str) -> Kind:
    """By the name of an arm: "vllm", "vllm-eager". Raises ValueError for another name."""
    if name not in NAMES:
        raise ValueError(f"--against {name}: expected some of {', '.join(NAMES)}, or list")
    return KINDS[name.removesuffix(EAGER)]
