"""Each kernel of a step is called what it is for, as in the chapters."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from mini_engine.bench.kernel_names import purposes, with_purposes  # noqa: E402
from mini_engine.bench.profile import profile_step  # noqa: E402
from mini_engine.bench.profile_rows import events_of_profile  # noqa: E402
from mini_engine.cli.measuring import tiny_shape  # noqa: E402
from mini_engine.cuda import kernels  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.weights import random_weights  # noqa: E402
from mini_engine.sim.trace import GPU  # noqa: E402
from tests.bench.test_profile import call, kernel, step_row  # noqa: E402

FIVE = ["linear", "fused_attention", "linear", "gate_up", "linear"]
FIVE_ARE = [
    "norm + QKV",
    "RoPE + KV write + attention",
    "O + residual",
    "norm + gate/up + SiLU·mul",
    "down + residual",
]
NINE_ARE = ["QKV", "RoPE + KV write", "attention", "O", "residual + norm", "gate/up", "SiLU·mul"]
NINE_ARE += ["down", "residual + norm"]


def test_a_graph_of_five_kernels_a_layer_as_kineto_tells_it() -> None:
    """Two layers in one graph launch: four nodes have the same function."""
    functions = [f"{name}_kernel" for name in [*FIVE, *FIVE, "head", "pick"]]
    rows = [step_row(0, 100), call("cudaGraphLaunch", 1, 5, 13)]
    rows.append(kernel("vectorized_gather_kernel", 6, 1, 13, node=20))
    rows += [kernel(name, 8 + 2 * i, 1, 13, node=21 + i) for i, name in enumerate(functions)]
    told = [e for e in with_purposes(events_of_profile(rows)) if e.lane == GPU]
    wanted = [*FIVE_ARE, *FIVE_ARE, "norm + head", "pick"]
    assert [e.name for e in told] == [
        "vectorized_gather_kernel",
        *(f"{what} ({name})" for what, name in zip(wanted, functions, strict=True)),
    ]
    assert {e.category for e in told} == {"node"}


@pytest.mark.parametrize("product", ["linear_kernel", "nvjet_hsh_64x8_64x16_4x1_v_bz_TNT"])
def test_nine_kernels_a_layer_with_our_products_or_a_librarys(product: str) -> None:
    layer = [product, "rope_kv_write_kernel", "decode_split_kernel", product]
    layer += ["add_rms_norm_kernel", product, "silu_mul_kernel", product]
    names = ["rms_norm_kernel", *layer, "add_rms_norm_kernel", *layer, "rms_norm_kernel"]
    names += [product if product.startswith("nvjet") else "head_kernel", "pick_kernel"]
    head = "head" if product.startswith("nvjet") else "norm + head"
    assert purposes(names) == ["norm", *NINE_ARE, *NINE_ARE[:-1], "norm", head, "pick"]


def test_the_plain_models_kernels_keep_their_names() -> None:
    assert set(purposes(["gemv2T_kernel", "void at::native::reduce_kernel<512>", "nvjet"])) == {""}


def test_every_kernel_of_a_step_has_a_name() -> None:
    left_out = {"decode_naive_kernel"}  # of no step
    for file in Path(kernels.__file__).parent.glob("*.py"):
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.endswith("_kernel"):
                assert node.name in left_out or purposes([node.name]) != [""], node.name


@pytest.mark.parametrize("mode", ["FULL", "NONE"])
def test_an_emulated_step_tells_its_kernels_in_order(mode: str) -> None:
    weights = random_weights(tiny_shape(), torch.device("cpu"), torch.float32, seed=0)
    step = profile_step(graphs_for("cpu"), weights, mode, batch=2, context=40, kernels=5)
    told = [e.name.partition(" (")[0] for e in step.timeline if "launch_bound::" in e.name]
    assert told == [*FIVE_ARE, *FIVE_ARE, "norm + head", "pick"]
    assert [op.name for op in step.ops][1:6] == [
        "norm_qkv_proj",
        "rope_kv_write_attention",
        "o_proj_add",
        "norm_gate_up_silu_mul",
        "down_proj_add",
    ]
