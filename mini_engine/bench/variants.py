"""The benchmark's variants: ways to run the same decode step, all in the table `VARIANTS`."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from mini_engine.bench.decode_setup import DecodeSetup, Variant
from mini_engine.bench.op_record import OpRecorder
from mini_engine.cuda.generate import no_pdl, no_triton
from mini_engine.cuda.graphs.backend import GraphBackend, why_no_bf16
from mini_engine.cuda.graphs.capture import GraphRunner
from mini_engine.cuda.weights import Weights
from mini_engine.model.checkpoint import EMBED, FINAL_NORM, LM_HEAD, layer_parts, tensor_shapes
from mini_engine.step.kernels import OpCost
from mini_engine.step.run import Mode

ANCHOR = "ours-graph"  # every variant is timed in turns with this one
# What predicts a variant: our plain model's ops are PyTorch's own kernels, the fused ones are ours.
PLAIN, COMPILED, OURS = "pytorch-loop", "torch-compile", "launch-bound"
SAME = ("vocab_size", "hidden_size", "intermediate_size", "head_dim", "max_position_embeddings",
        "rms_norm_eps", "tie_word_embeddings")  # fmt: skip


class OursEager(Variant):
    """Our plain model, every op launched from Python."""

    def __init__(self, setup: DecodeSetup) -> None:
        super().__init__(setup)
        self.model, self.inputs = setup.model, setup.inputs()

    def place(self, tokens: Tensor, context: int) -> None:
        self.setup.place(self.inputs, tokens, context)

    def step(self) -> None:
        self.outputs = [self._decode()]

    def feed(self, tokens: Tensor) -> None:
        self.inputs.input_ids.copy_(tokens)

    def ops(self, style: str = "") -> list[OpCost]:  # noqa: ARG002 (they are its own)
        recorder = OpRecorder()
        with recorder:
            for _ in range(self.steps_a_call):
                self._decode()
        return recorder.ops

    def _decode(self) -> tuple[Tensor, Tensor]:
        """One step, from embed to the token written and fed back: logits and tokens."""
        hidden = self.model.body(self.inputs, self.setup.attention)
        return self.model.next_step(hidden, self.inputs)


class OursGraph(OursEager):
    """The same in one graph, which holds `steps_a_call` steps."""

    def __init__(self, setup: DecodeSetup, steps_a_call: int = 1) -> None:
        super().__init__(setup)
        self.steps_a_call = steps_a_call
        pool = setup.backend.graph_pool_handle()
        self.graphs = GraphRunner(setup.backend, self._forward, [setup.batch], pool)

    def prepare(self) -> None:
        if self.graphs.capture().dropped:
            raise torch.OutOfMemoryError(f"no memory to capture batch {self.setup.batch}")

    def release(self) -> None:
        super().release()
        self.graphs.reset()

    def step(self) -> None:
        self.graphs.replay(self.setup.batch)

    def _forward(self, rung: int) -> Tensor:  # noqa: ARG002 (there is one rung)
        """Keeps the logits of every step for the gate: they are computed anyway."""
        self.outputs = [self._decode() for _ in range(self.steps_a_call)]
        return self.outputs[-1][0]


class OursCompiled(OursEager):
    """torch.compile, with its `options`, of the whole step of our plain model."""

    ops = Variant.ops  # what a compiler makes of the ops is predicted by its own list

    def __init__(self, setup: DecodeSetup, **options: Any) -> None:
        super().__init__(setup)
        self._compiled: Any = torch.compile(super()._decode, dynamic=False, **options)

    def prepare(self) -> None:
        """Compiles at the first call; CUDA graphs are recorded at the second, run from the third.
        Without static addresses Inductor makes no graph that writes to weights, cache and inputs
        (torch/_inductor/cudagraph_utils.py, check_for_mutation)."""
        model, weights, cache = self.model, self.model.weights, self.model.cache
        layers = [t for layer in weights.layers for t in vars(layer).values() if t is not None]
        tables = weights.embed, weights.final_norm, weights.lm_head, model.cos, model.sin
        inputs = vars(self.inputs).values()
        for tensor in (*layers, *tables, *cache.keys, *cache.values, *inputs):
            torch._dynamo.mark_static_address(tensor)
        for _ in range(3):
            self.step()

    def _decode(self) -> tuple[Tensor, Tensor]:
        # nobody will read the outputs of the last step again: they may be overwritten
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        found: tuple[Tensor, Tensor] = self._compiled()
        return found

    def release(self) -> None:
        super().release()
        torch.compiler.reset()


class FusedGraph(OursGraph):
    """`OursGraph` with the layer in Triton kernels."""

    def __init__(
        self, setup: DecodeSetup, kernels_per_layer: Literal[9, 5], pdl: bool, steps_a_call: int
    ) -> None:
        from mini_engine.cuda.fused import FusedModel  # imports Triton, which not every system has

        weights, cache = setup.model.weights, setup.model.cache
        model = FusedModel(weights, cache, kernels_per_layer=kernels_per_layer, pdl=pdl)
        super().__init__(replace(setup, model=model), steps_a_call)
        self.style = f"fused{model.kernels_of(setup.batch)}"

    def ops(self, style: str = "") -> list[OpCost]:  # noqa: ARG002 (the style of this batch)
        return Variant.ops(self, self.style) * self.steps_a_call


class HuggingFace(Variant):
    """transformers, eagerly, on the same weights, keys and values, with a growing cache."""

    def __init__(self, setup: DecodeSetup) -> None:
        super().__init__(setup)
        self.model: Any = transformers_model(setup.model.weights)
        shape, device = (setup.batch, 1), setup.backend.device
        self.input_ids, self.positions = torch.zeros((2, *shape), dtype=torch.long, device=device)
        self.cache: Any = None

    def place(self, tokens: Tensor, context: int) -> None:
        self.feed(tokens)
        self.positions.fill_(context - 1)
        self.cache = importlib.import_module("transformers").DynamicCache(config=self.model.config)
        if context > 1:
            for layer, (keys, values) in enumerate(self.setup.cached(context - 1)):
                self.cache.update(keys, values, layer)

    def step(self) -> None:
        out = self.model(
            self.input_ids, position_ids=self.positions, past_key_values=self.cache, use_cache=True
        )
        logits: Tensor = out.logits[:, -1]  # (batch, vocab)
        best = logits.argmax(-1)
        self.outputs = [(logits, best)]
        self.feed(best)
        self.positions.add_(1)

    def feed(self, tokens: Tensor) -> None:
        self.input_ids.copy_(tokens[:, None])

    def release(self) -> None:
        super().release()
        self.cache = self.model = None


def transformers_model(weights: Weights) -> Any:
    """The `...ForCausalLM` of these weights: its parameters are rows of our merged matrices."""
    transformers, c = importlib.import_module("transformers"), weights.config
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": c.rope_theta}
    if c.rope_scaling is not None:
        rope |= {"rope_type": "llama3", **vars(c.rope_scaling)}
    config = getattr(transformers, f"{c.family.capitalize()}Config")(
        **{name: getattr(c, name) for name in SAME},
        num_hidden_layers=c.num_layers, num_attention_heads=c.num_heads,
        num_key_value_heads=c.num_kv_heads, rope_parameters=rope,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    before = torch.get_default_dtype()
    torch.set_default_dtype(weights.embed.dtype)
    try:
        with torch.device(weights.embed.device):
            model = getattr(transformers, f"{c.family.capitalize()}ForCausalLM")(config)
    finally:
        torch.set_default_dtype(before)
    named = {EMBED: weights.embed, FINAL_NORM: weights.final_norm, LM_HEAD: weights.lm_head}
    shapes = tensor_shapes(c)
    for index, layer in enumerate(weights.layers):
        for field, names in layer_parts(c, index).items():
            heights = [shapes[name][0] for name in names]
            named.update(zip(names, torch.split(getattr(layer, field), heights), strict=True))
    model.load_state_dict(named, assign=True)
    if c.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    return model.requires_grad_(False).eval()


def no_transformers(_: GraphBackend) -> str | None:  # why they cannot run here, in one line
    missing = "transformers is not installed: pip install 'transformers>=5.17,<6'"
    return None if importlib.util.find_spec("transformers") else missing


def no_kernels(backend: GraphBackend) -> str | None:  # the same for our Triton kernels
    return no_triton() or why_no_bf16(backend)


# ---------------------------------------------------------------- the table


@dataclass(frozen=True)
class VariantKind:
    make: Callable[[DecodeSetup], Variant]
    mode: Mode  # how its ops are launched, for the simulator
    engine: str = PLAIN  # what predicts it: a file of `mini_engine/step/engines`
    why_not: Callable[[GraphBackend], str | None] = lambda _: None  # one line if it cannot run here
    gated: bool = True  # ours: not timed unless it passes the gate. A baseline is only marked.
    pdl: bool = False  # the nodes of its graph overlap, for the simulator


def _compiled(torch_mode: str, mode: Mode) -> VariantKind:
    def why_not(backend: GraphBackend) -> str | None:
        emulated = "torch.compile for a CPU is another thing: this variant needs an NVIDIA GPU"
        return emulated if backend.emulated else None

    def make(setup: DecodeSetup) -> Variant:
        return OursCompiled(setup, mode=torch_mode, fullgraph=True)

    return VariantKind(make, mode, COMPILED, why_not, gated=False)


def _ours(kernels: Literal[9, 5], *, pdl: bool = False, steps: int = 1) -> VariantKind:
    return VariantKind(
        lambda setup: FusedGraph(setup, kernels, pdl, steps), "full", OURS,
        no_pdl if pdl else no_kernels, pdl=pdl,
    )  # fmt: skip


VARIANTS: dict[str, VariantKind] = {
    "null": VariantKind(OursGraph, "full"),  # the anchor against itself: any difference is noise
    "hf-eager": VariantKind(HuggingFace, "eager", "transformers", no_transformers, gated=False),
    # our plain model: eager, one graph, eight steps in one graph
    "ours-eager": VariantKind(OursEager, "eager"),
    "ours-graph": VariantKind(OursGraph, "full"),
    "ours-graph-k8": VariantKind(lambda setup: OursGraph(setup, steps_a_call=8), "full"),
    # one graph of Triton kernels, nine or five a layer; with PDL each starts while the last drains
    "graph-9": _ours(9),
    "graph-5": _ours(5),
    "graph-5-pdl": _ours(5, pdl=True),
    "graph-5-pdl-k8": _ours(5, pdl=True, steps=8),
    # torch.compile of our plain model; the last mode puts CUDA graphs around it
    "compile-default": _compiled("default", "eager"),
    "compile-reduce-overhead": _compiled("reduce-overhead", "full"),
}
