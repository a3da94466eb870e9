"""The backend, and the model that runs through it: Dynamo's graph in, pieces and attention out.

    model = CompiledModel(weights, cache)               # the plain model's place, in any runner
    hidden = model.body(inputs, attention)              # the first of its kind traces

In:  a model's weights and cache. Out: the same hidden states, from pieces that a
     `PiecewiseGraphRunner` captures: it hands in an attention that ends its graph, and between two
     pieces we call whatever attention we are given.

A first start traces, rewrites, cuts and compiles, and keeps the result in a cache. A later one, in
any process, finds it by what is known without a trace, and runs neither Dynamo nor the pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from labs.lab13b_compile_backend.cache import Cache, digest, piece_key, versions
from labs.lab13b_compile_backend.guards import (
    TOKENS,
    Signature,
    conditions,
    described,
    mark_tokens,
    signature,
)
from labs.lab13b_compile_backend.marker import Marker
from labs.lab13b_compile_backend.pieces import Run, Step, compiled, loaded, parts, why_not
from labs.lab13b_compile_backend.split import split
from mini_engine.cuda.attention import Attend, Attention
from mini_engine.cuda.inputs import StepInputs
from mini_engine.cuda.model import KVCache, Model
from mini_engine.cuda.weights import Weights

STEP = ("input_ids", "positions", "slot_mapping")  # of `StepInputs`, what a body reads


@dataclass(frozen=True)
class Start:
    """How one class of steps came to run, for people."""

    tokens: str  # "T": any number from 2 up; "1": one
    from_cache: bool
    pieces: int
    distinct: int  # of them; equal pieces are compiled once
    attentions: int
    matches: int  # of the pass
    seconds: dict[str, float]  # trace, pass, split, compile; or load

    @staticmethod
    def of(kind: Signature, step: Step, seconds: dict[str, float]) -> Start:
        every, distinct = len(step.keys), len(set(step.keys.values()))
        calls = [node for node in step.graph.graph.nodes if node.op == "call_module"]
        attentions, cached = len(calls) - every, "load" in seconds
        return Start(kind.tokens, cached, every, distinct, attentions, step.matches, seconds)


@dataclass
class Backend:
    """What `torch.compile` is given: takes a graph and its inputs, gives back what to call."""

    names: dict[int, str]  # of every tensor that the graph may take, by its id
    rewrite: Callable[[GraphModule], int]  # the passes; returns matches
    compiler: str
    store: Cache | None
    key: str  # of the step, there
    attend: Attend  # of the first step, which runs as soon as it is compiled
    made: Step | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    def __call__(self, graph: GraphModule, example_inputs: list[Any]) -> Run:
        began = time.perf_counter()
        inputs = tuple(self._name(value) for value in example_inputs)
        matches = self.rewrite(graph)
        rewritten = time.perf_counter()
        cut, attentions = split(graph)
        pieces = {name: part for name, part in parts(cut).items() if name not in attentions}
        keys = {name: piece_key(part, self.compiler, versions()) for name, part in pieces.items()}
        self.made = Step(inputs, cut, keys, matches, self.attend)
        cut_at = time.perf_counter()
        if self.store:
            self.store.write(self.key, self.made.to_bytes())
        distinct = {keys[name]: piece for name, piece in pieces.items()}
        self.made.install({key: self._piece(key, piece) for key, piece in distinct.items()})
        self.seconds = {
            "pass": rewritten - began,
            "split": cut_at - rewritten,
            "compile": time.perf_counter() - cut_at,
        }
        return self.made.graph

    def _piece(self, key: str, piece: GraphModule) -> Run:
        """From the cache, where another model may have left it, or compiled now."""
        if self.store and (content := self.store.read(key)) is not None:
            return loaded(content, piece, self.compiler)
        run, content = compiled(piece, self.compiler)
        if self.store:
            self.store.write(key, content)
        return run

    def _name(self, value: Any) -> str:
        """What a graph's input is called. A number can only be that of the tokens."""
        if isinstance(value, Tensor) and id(value) in self.names:
            return self.names[id(value)]
        if isinstance(value, torch.SymInt):
            if asked := conditions(value):
                raise ValueError(
                    f"the model asks for its number of tokens ({', '.join(asked)}), and a trace "
                    "goes one way only: choose without asking, as torch.where does"
                )
            return TOKENS
        kind = described("a tensor", value) if isinstance(value, Tensor) else repr(value)
        raise ValueError(f"the graph wants {kind}, which is no input, weight or cache")


class CompiledModel(Model):
    """The plain model, its body compiled by our backend."""

    def __init__(
        self,
        weights: Weights,
        cache: KVCache,
        *,
        passes: bool = True,
        compiler: str = "eager",
        store: Cache | None = None,
    ) -> None:
        """Raises ValueError where the compiler or the op that the pass puts in cannot run."""
        super().__init__(weights, cache)
        if reason := why_not(compiler, weights.embed.device):
            raise ValueError(reason)
        if passes and find_spec("triton") is None:
            raise ValueError("the pass puts in a Triton kernel: install triton, or leave it out")
        self.passes, self.compiler, self.store = passes, compiler, store
        self._rewrite: Callable[[GraphModule], int] = lambda graph: 0
        if passes:  # also where the cache spares the pass: its op is defined there
            from labs.lab13b_compile_backend.passes import add_rms_norm_pass

            eps, dtype = self.config.rms_norm_eps, weights.embed.dtype
            self._rewrite = partial(add_rms_norm_pass, eps=eps, dtype=dtype)
        self.starts: list[Start] = []
        self._steps: dict[Signature, Step] = {}
        self._static = static_tensors(self)

    def body(self, inputs: StepInputs, attention: Attention) -> Tensor:
        """As `Model.body`, by the trace of this kind of step: one that has run here before, else
        the cache's, else a new one, for which `_trace` runs the step as well.

        A step that is ready takes its inputs in the order of their names (`Step.inputs`) and the
        attention of this call (`Step.attend`), and returns a tuple.
        """
        step = {name: getattr(inputs, name) for name in STEP}
        kind = signature(step)
        attend = attention.begin(inputs)
        if kind not in self._steps and (found := self._from_cache(kind)):
            self._steps[kind] = found
        if kind not in self._steps:
            return self._trace(kind, step, inputs, attend)
        ready = self._steps[kind]
        ready.attend = attend
        values = self._static | step
        tokens = len(inputs.input_ids)
        (hidden,) = ready.graph(*(tokens if n == TOKENS else values[n] for n in ready.inputs))
        result: Tensor = hidden
        return result

    def key(self, kind: Signature) -> str:
        """Of the step in the cache: all that its trace depends on."""
        static = [described(name, tensor) for name, tensor in self._static.items()]
        return digest(kind, *static, self.config, self.passes, self.compiler, *versions())

    def _trace(
        self, kind: Signature, step: dict[str, Tensor], inputs: StepInputs, attend: Attend
    ) -> Tensor:
        """Run a step for the first time: Dynamo calls the backend, and then what it gave back."""
        # here, for a start that finds all in the cache need not import Dynamo
        from torch._dynamo.eval_frame import reset_code  # type: ignore[attr-defined]
        from torch._dynamo.exc import BackendCompilerFailed

        names = {id(tensor): name for name, tensor in (self._static | step).items()}
        backend = Backend(names, self._rewrite, self.compiler, self.store, self.key(kind), attend)

        def plain_body(inputs: StepInputs) -> Tensor:
            return Model.body(self, inputs, Marker())

        mark_tokens(step)
        reset_code(plain_body.__code__)  # what Dynamo keeps of other models' traces is no concern
        run = torch.compile(plain_body, backend=backend, fullgraph=True, dynamic=False)
        began = time.perf_counter()
        try:
            hidden: Tensor = run(inputs)
        except BackendCompilerFailed as error:  # what Dynamo makes of an error of the backend's
            raise error.inner_exception from error
        seconds = {"trace": time.perf_counter() - began - sum(backend.seconds.values())}
        assert backend.made
        self._steps[kind] = backend.made
        self.starts.append(Start.of(kind, backend.made, seconds | backend.seconds))
        return hidden

    def _from_cache(self, kind: Signature) -> Step | None:
        """The step as an earlier start left it, or None where anything of it is missing."""
        if self.store is None:
            return None
        began = time.perf_counter()
        if (content := self.store.read(self.key(kind))) is None:
            return None
        step = Step.from_bytes(content)
        runs: dict[str, Run] = {}
        for name, key in step.keys.items():
            if key not in runs:
                if (piece := self.store.read(key)) is None:
                    return None
                runs[key] = loaded(piece, parts(step.graph)[name], self.compiler)
        step.install(runs)
        self.starts.append(Start.of(kind, step, {"load": time.perf_counter() - began}))
        return step


def static_tensors(model: Model) -> dict[str, Tensor]:
    """What a body reads and no step changes the place of, by name."""
    weights, cache = model.weights, model.cache
    named = {"cos": model.cos, "sin": model.sin, "embed": weights.embed}
    for i, layer in enumerate(weights.layers):
        every = {f"layers.{i}.{f.name}": getattr(layer, f.name) for f in fields(layer)}
        named |= {name: tensor for name, tensor in every.items() if tensor is not None}
    for kind in ("keys", "values"):
        named |= {f"{kind}.{i}": tensor for i, tensor in enumerate(getattr(cache, kind))}
    return named
