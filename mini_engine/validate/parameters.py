"""What `validate --fit` fits: a row for each figure, with its prior and where that comes from.

In:  the sheets. Out: `Parameter`s, for `fit.fit_points`.

A figure that several files share, such as the floor of hand-written kernels, is one parameter.
"""

from __future__ import annotations

from mini_engine.validate.fit import Parameter
from mini_engine.validate.published import Sheets

GPT_FAST = (
    "gpt-fast's README: 1,397 of 2,039 GB/s on an A100, https://github.com/pytorch-labs/gpt-fast"
)
HAZY = (
    "100 kernels of Llama-3.2-1B in 795 µs on an H200: 2.2 µs a kernel beside its bytes, 1.3 of it "
    "the gap, https://github.com/msaroufim/megakernels-vs-cuda-graphs"
)
USUAL = "what is usual; no source"
HOSTS = "the middle of what is published, which is from 5 to 22 µs an op"


def parameters(sheets: Sheets) -> tuple[Parameter, ...]:
    """All of them: the hosts among them are those of the sheets whose speed is fitted."""

    def cards(family: str) -> tuple[tuple[str, str], ...]:
        found = (n for n, sheet in sheets.cards.items() if sheet.words["family"] == family)
        return tuple(("card", name) for name in found)

    def engines(*chosen: str) -> tuple[tuple[str, str], ...]:
        return tuple(("engine", name) for name in chosen)

    served = ("vllm-v0", "vllm-2025", "vllm", "sglang", "nano-vllm")
    makers = (*served, "other-engine")
    loops = ("transformers", "pytorch-loop", "torch-compile")
    hand = ("custom-kernels", "megakernel", "launch-bound")
    vllm = ("vllm", "vllm-2025")
    small = ("nano-vllm", "launch-bound")  # ours is taken for a small Python engine, too
    share, floor = "product_share", "kernel_floor_us"
    return (
        Parameter("share of A100", share, cards("hbm2e"), 0.72, 0.1, GPT_FAST, top=1),
        Parameter("share of Hopper", share, cards("hopper"), 0.88, 0.08, USUAL, top=1),
        Parameter("share of GDDR", share, cards("gddr"), 0.92, 0.06, USUAL, top=1),
        Parameter("share of B200", share, cards("blackwell"), 0.85, 0.1, USUAL, top=1),
        Parameter("attention share", "attention_share", engines(*makers, *loops, *hand), 0.8, 0.2,
                  USUAL, top=1),
        Parameter("floor, engines", floor, engines(*served), 2.0, 0.5, USUAL),
        Parameter("floor, other engines", floor, engines("other-engine"), 2.0, 0.5, USUAL),
        Parameter("floor, PyTorch's ops", floor, engines("pytorch-loop", "transformers"), 1.0, 0.5,
                  USUAL),
        Parameter("floor, compiled", floor, engines("torch-compile"), 2.0, 0.5, USUAL),
        Parameter("floor, by hand", floor, engines(*hand), 0.8, 0.5, HAZY),
        *(
            Parameter(f"host {name}", "op_us", (("host", name),), 10.6, 0.5, HOSTS)
            for name, sheet in sorted(sheets.hosts.items())
            if sheet.figures["op_us"].kind == "fitted"
        ),
        Parameter("vllm eager kernel", "kernel_ops", engines(*vllm, "vllm-v0"), 5.9, 0.4,
                  "570 µs a layer on two A100 hosts"),
        Parameter("vllm live op", "live_ops", engines(*vllm, "vllm-v0", "launch-bound"), 10.5, 0.3,
                  "100 to 130 µs a piece with its live attention"),
        Parameter("nano-vllm kernel", "kernel_ops", engines(*small), 6.0, 0.5, USUAL),
        Parameter("sglang kernel", "kernel_ops", engines("sglang"), 4.0, 0.5, USUAL),
        Parameter("vllm V0 step", "step_ops", engines("vllm-v0"), 175, 0.4, "about 1.9 ms"),
        Parameter("V1 step", "step_ops", engines("vllm-2025"), 42, 0.5, "0.3 to 0.6 ms"),
        Parameter("small engines' step", "step_ops", engines("sglang", *small), 42, 0.7, USUAL),
        Parameter("a request", "request_ops", engines(*makers), 1.0, 1.0, USUAL),
    )  # fmt: skip
