"""Your fused kernels: what one program loads and stores, in order, and a text with all of them."""

import torch

from labs.measuring.kernel_show import PROMPT, continued, lane
from labs.watched import Watch, watching
from mini_engine.cuda.kernels import activation, norm, rope
from mini_engine.cuda.kernels.paged import Heads

WIDTH, ROWS, TOKENS = 100, 2, 6


def row_kernels() -> None:
    torch.manual_seed(11)
    x, residual = torch.randn(2, ROWS, WIDTH).unbind()
    weight, out, gate_up = torch.ones(WIDTH), torch.zeros(ROWS, WIDTH), torch.randn(ROWS, 2 * WIDTH)
    for name, module, tensors, run in (
        ("silu_mul", activation, {"gate_up": gate_up}, lambda: activation.silu_mul(out, gate_up)),
        ("rms_norm", norm, {"x": x, "weight": weight}, lambda: norm.rms_norm(out, x, weight, 1e-6)),
        (
            "add_rms_norm",
            norm,
            {"x": x, "residual": residual, "weight": weight},
            lambda: norm.add_rms_norm(out, residual, x, weight, 1e-6),
        ),
    ):
        with watching(module, **tensors, out=out) as watch:
            run()
        seen(name, watch)
        print(f"{'':14}out {' '.join(f'{value:6.2f}' for value in out[0, :8].tolist())}")


def rope_kernel() -> None:
    torch.manual_seed(12)
    heads = Heads(2, 1, 16, 4)
    qkv, q = torch.randn(1, heads.qkv_size), torch.zeros(1, 32)
    k_cache, v_cache = torch.zeros(2, 3, 4, 1, 16).unbind()
    angle = torch.rand(4, 8)
    position, slot = torch.tensor([3]), torch.tensor([9])
    tensors = {"qkv": qkv, "q": q, "k_cache": k_cache, "v_cache": v_cache}
    tables = (position, slot, angle.cos(), angle.sin(), torch.ones(16), torch.ones(16))
    with watching(rope, **tensors) as watch:
        rope.rope_kv_write(q, k_cache, v_cache, qkv, *tables)
    for name in ("k_cache", "v_cache"):
        slots = sorted({at // 16 for at in watch.elements("store", name)})
        print(f"{'rope_kv_write':14}token of slot 9: {name} is written at slot {slots}")
    print(f"{'':14}q   {' '.join(f'{value:6.2f}' for value in q[0, :8].tolist())}")


def seen(name: str, watch: Watch) -> None:
    print(f"{name:14}{lane(watch, watch.programs[0])}")
    counted = [
        f"{tensor} {did} {count} of {whole.numel()}"
        for tensor, whole in watch.tensors.items()
        for kind, did in (("load", "read"), ("store", "written"))
        if (count := len(watch.elements(kind, tensor)))
    ]
    print(f"{'':14}{', '.join(counted)}")


def main() -> None:
    print(f"{ROWS} rows of {WIDTH} numbers; program 0, then the numbers of all programs\n")
    row_kernels()
    rope_kernel()
    print("\na text in PyTorch:      ", continued(PROMPT, TOKENS, ()))
    print("and with your kernels:  ", continued(PROMPT, TOKENS, ("norm", "activation", "rope")))


if __name__ == "__main__":
    main()
