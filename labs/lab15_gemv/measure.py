"""The measuring step of lab 15: the four products of a layer beside PyTorch's, and as machine code.

In:  the learner's kernels, where the engine's would stand. Out: see
labs/measuring/kernel_timing.py; then what a compiler tells without a GPU: registers, spills, and
what is loaded above the wait. Shapes: Qwen3-0.6B in bf16, one token. (The engine itself multiplies
bf16 on tensor cores: mini_engine/cuda/kernels/gemv_dot.py, the same kernels with another product.)

The times are without dependent launch. With it, calls of one chain in a row run into each other
and look faster than any decode step is: the bench's `graph-5` and `graph-5-pdl` tell what it saves.
"""

from __future__ import annotations

import sys

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional

from labs.measuring.kernel_timing import YOURS, Calls, Case, main
from mini_engine.cuda.kernels import gemv, linear
from mini_engine.cuda.kernels.launch import INTERPRETED, runs_triton, sm_count
from mini_engine.model.config import ModelConfig, named_shape
from mini_engine.step.cards import DeviceSpec
from mini_engine.step.kernels import OpCost, StepShape, step_parts
from tests.support import kernel_shapes

EPS, TYPE = 1e-6, torch.bfloat16
WAIT, WIDE_LOAD = r"\bACQBULK\b", r"\bLDG\.\S*128"
PAST_L1 = r"\bLD(G|GSTS)\.\S*(STRONG\.GPU|BYPASS)"  # .cg: what the step wrote


def cases(config: ModelConfig) -> list[Case]:
    """norm + QKV first: that is the one to predict."""
    hidden, inner = config.hidden_size, config.intermediate_size
    parts = step_parts(config, StepShape.decode(1, 1), "fused5")
    ops = {op.name: op for op in parts.layer}
    qkv = config.q_size + 2 * config.kv_size
    return [
        _norm_linear("norm + QKV", ops["norm_qkv_proj"], qkv, hidden),
        _linear_add("O + residual", ops["o_proj_add"], hidden, config.q_size),
        _gate_up("norm + gate/up + SiLU·mul", ops["norm_gate_up_silu_mul"], inner, hidden),
        _linear_add("down + residual", ops["down_proj_add"], hidden, inner),
    ]


def _norm_linear(name: str, op: OpCost, rows: int, width: int) -> Case:
    def calls(device: torch.device) -> Calls:
        x, norm_weight, weight = _tensors(device, width, rows)
        out = torch.empty(1, rows, device=device, dtype=TYPE)
        plan = gemv.gemv_plan(rows, width, sm_count=sm_count(device))

        def in_triton() -> tuple[Tensor, ...]:
            if runs_triton(x):
                tensors = out, x, norm_weight, weight, None
                form = {"NORM": True, "BIAS": False, "ADD": False}
                gemv.launch(gemv.linear_kernel, plan, *tensors, EPS, **form)
            else:
                linear.norm_linear(out, x, norm_weight, weight, EPS)  # its reference
            return (out,)

        def in_pytorch() -> tuple[Tensor, ...]:
            return (functional.linear(functional.rms_norm(x, (width,), norm_weight, EPS), weight),)

        return {YOURS: in_triton, "PyTorch, 2 ops": in_pytorch}

    return Case(name, (op,), calls)


def _linear_add(name: str, op: OpCost, rows: int, width: int) -> Case:
    def calls(device: torch.device) -> Calls:
        x, _, weight = _tensors(device, width, rows)
        residual = torch.zeros(1, rows, device=device, dtype=TYPE)
        plan = gemv.gemv_plan(rows, width, sm_count=sm_count(device))

        def in_triton() -> tuple[Tensor, ...]:
            if runs_triton(x):
                tensors = residual, x, None, weight, None
                form = {"NORM": False, "BIAS": False, "ADD": True}
                gemv.launch(gemv.linear_kernel, plan, *tensors, EPS, **form)
            else:
                linear.linear_add(residual, x, weight)
            return (residual,)

        def in_pytorch() -> tuple[Tensor, ...]:
            return (residual.add_(functional.linear(x, weight)),)

        return {YOURS: in_triton, "PyTorch, 2 ops": in_pytorch}

    return Case(name, (op,), calls)


def _gate_up(name: str, op: OpCost, inner: int, width: int) -> Case:
    def calls(device: torch.device) -> Calls:
        x, norm_weight, weight = _tensors(device, width, 2 * inner)
        out = torch.empty(1, inner, device=device, dtype=TYPE)
        plan = gemv.gemv_plan(inner, width, pairs=True, sm_count=sm_count(device))

        def in_triton() -> tuple[Tensor, ...]:
            if runs_triton(x):
                gemv.launch(gemv.gate_up_kernel, plan, out, x, norm_weight, weight, EPS)
            else:
                linear.norm_gate_up_silu_mul(out, x, norm_weight, weight, EPS)
            return (out,)

        def in_pytorch() -> tuple[Tensor, ...]:
            both = functional.linear(functional.rms_norm(x, (width,), norm_weight, EPS), weight)
            gate, up = both.chunk(2, dim=-1)
            return (functional.silu(gate) * up,)

        return {YOURS: in_triton, "PyTorch, 4 ops": in_pytorch}

    return Case(name, (op,), calls)


def _tensors(device: torch.device, width: int, rows: int) -> list[Tensor]:
    """x (1, K), norm_weight (K,), weight (N, K)."""
    shapes = ((1, width), (width,), (rows, width))
    return [torch.randn(shape, device=device, dtype=TYPE) / width**0.25 for shape in shapes]


def for_spec(_spec: DeviceSpec) -> list[Case]:
    return cases(named_shape("qwen3-0.6b"))


# ---------------------------------------------------------------- without a GPU


def show_machine_code(console: Console) -> None:
    """Your kernels compiled for sm_90 (Hopper), with dependent launch: a line each."""
    console.print("\nYour kernels compiled for sm_90 with dependent launch; no GPU is needed:\n")
    heads = ("", "programs", "on an SM", "registers", "spilled", "KB above wait", "too early")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in heads:
        table.add_column(head, justify="right" if head else "left", no_wrap=True)
    found = {c.name: c for c in kernel_shapes.products(named_shape("qwen3-0.6b"), dot=False)}
    complaints = []
    for name in ("norm_qkv", "o_add", "norm_gate_up", "down_add"):
        try:
            table.add_row(name, *_compiled(found[f"{name}_m1"]))
        except Exception as error:  # the compiler refuses some of what the interpreter takes
            table.add_row(name, "-")
            complaints.append(f"\n{name} does not compile: {error}")
    console.print(table)
    console.print(
        "\nspilled: bytes a thread. KB above wait: weights of a program, already on their way."
        "\ntoo early: loads of what the step wrote (.cg) that stand above the wait."
    )
    for complaint in complaints:
        console.print(complaint, markup=False)


def _compiled(case: kernel_shapes.Case) -> list[str]:
    """The figures of one kernel."""
    made = case.compile(90, pdl=True)
    waits = made.where(WAIT)
    wait = waits[0] if waits else 0
    above = sum(at < wait for at in made.where(WIDE_LOAD)) * 16 * made.threads
    early = sum(at < wait for at in made.where(PAST_L1))
    constants = dict(case.constants)
    programs = -(-constants["N"] // constants["ROWS"])
    share = f"{min(above, case.prefetched) / 1e3:.1f} of {case.prefetched / 1e3:.1f}"
    numbers = (programs, made.resident, made.registers, made.spilled_bytes)
    return [*map(str, numbers), share, str(early)]


if __name__ == "__main__":
    code = main("15", for_spec, sys.argv[1:])
    if code == 0 and not INTERPRETED:
        show_machine_code(Console(highlight=False))
    sys.exit(code)
