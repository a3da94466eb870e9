"""Your GEMV: plans for a real layer, what a program does in which order, and a text through it."""

from unittest import mock

import torch

from labs.measuring.kernel_show import PROMPT, continued, lane
from labs.support.watched import Watch
from labs.support.watching import watching
from mini_engine.cuda.kernels import gemv, linear
from mini_engine.cuda.kernels.gemv import GemvPlan, gemv_plan

ROWS, WIDTH, TOKENS = 7, 100, 5
RAGGED = GemvPlan(rows=4, warps=4, chunk=32, chunks=4)


def large(_: int, width: int, **__: object) -> GemvPlan:
    """One program a product: the interpreter takes its time for each."""
    return GemvPlan(1024, 4, 256, -(-width // 256))


def plans() -> None:
    for name, rows, width, pairs in (
        ("norm, QKV", 4096, 1024, False),
        ("O, residual", 1024, 2048, False),
        ("norm, gate and up", 3072, 1024, True),
        ("down, residual", 1024, 3072, False),
    ):
        plan = gemv_plan(rows, width, pairs=pairs)
        held = plan.rows * (1 + pairs) * width * 2 / 1e3
        print(
            f"  {name:18} {plan.num_programs(rows):4} programs of {held:5.1f} KB:"
            f" rows {plan.rows}, chunks {plan.chunks} × {plan.chunk}, warps {plan.warps}"
        )


def told(name: str, watch: Watch, out: torch.Tensor, wanted: torch.Tensor) -> None:
    print(f"\n{name}: {lane(watch, watch.programs[0])}")
    weight = watch.tensors["weight"]
    read = set(watch.elements("load", "weight"))
    print(f"  of {weight.numel():,} weights {len(read):,} are read")
    near = "as PyTorch's" if torch.allclose(out, wanted, atol=1e-4) else "NOT as PyTorch's"
    print(f"  out {' '.join(f'{value:7.2f}' for value in out[0, :7].tolist())}  {near}")


def products() -> None:
    torch.manual_seed(13)
    x, norm_weight = torch.randn(1, WIDTH), torch.rand(WIDTH)
    weight, both = torch.randn(ROWS, WIDTH), torch.randn(2 * ROWS, WIDTH)
    residual = torch.randn(1, ROWS)
    normed = torch.nn.functional.rms_norm(x, (WIDTH,), norm_weight, 1e-6)
    given = {"x": x, "norm": norm_weight}

    wanted, out = residual + normed @ weight.T, residual.clone()
    with watching(gemv, **given, weight=weight, out=out) as watch:
        tensors = RAGGED, out, x, norm_weight, weight, None, 1e-6
        gemv.launch(gemv.linear_kernel, *tensors, NORM=True, BIAS=False, ADD=True)
    told("norm, product, residual", watch, out, wanted)

    gate, up = (normed @ both.T).chunk(2, dim=-1)
    out = torch.zeros(1, ROWS)
    with watching(gemv, **given, weight=both, out=out) as watch:
        gemv.launch(gemv.gate_up_kernel, RAGGED, out, x, norm_weight, both, 1e-6)
    told("norm, gate and up", watch, out, torch.nn.functional.silu(gate) * up)


def main() -> None:
    print("your plans for Qwen3-0.6B on 132 multiprocessors")
    plans()
    products()
    with mock.patch.object(linear, "gemv_plan", large):
        text = continued(PROMPT, TOKENS, ("linear",), kernels=5)
    print("\na text in PyTorch:     ", continued(PROMPT, TOKENS, (), kernels=5))
    print("and with your products:", text)


if __name__ == "__main__":
    main()
