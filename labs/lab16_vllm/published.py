"""What others have published of vLLM with and without graphs, beside what our model says of it.

In:  `published.json`: figures with their sources. Out: lines of text for `./lab measure 16`, and
     `Reconciled`: how a published factor of 3.7 and a predicted one of 8.8 belong together.

A request is more than its decode steps: a prompt, a queue, Python around the engine. None of that
is in our model of a step. Graphs make the steps short and leave the rest as it was, so the factor
of a whole request is smaller than that of a step, and the more so the smaller the model is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mini_engine.files import read_object
from mini_engine.model.config import ModelConfig, named_shape
from mini_engine.step.cards import DeviceSpec
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.run import step_time

FILE = Path(__file__).parent / "published.json"


def gpt2_like() -> ModelConfig:
    """GPT-2's depth, widths and bytes as a model that our op list knows.

    Its MLP has two matrices of 768 × 3,072; three of 768 × 2,048 are as many bytes. LayerNorms and
    biases instead of RMSNorms change no kernel's count and hardly its bytes.
    """
    return replace(
        named_shape("qwen3-0.6b"),
        name="gpt-2, as vLLM would launch a Llama",
        hidden_size=768, intermediate_size=2048, num_layers=12, num_heads=12, num_kv_heads=12,
        head_dim=64, vocab_size=50257, max_position_embeddings=1024, eos_token_ids=(),
    )  # fmt: skip


@dataclass(frozen=True)
class Reconciled:
    """One published request, and our steps in it. Times in ms."""

    kernels: int  # of a step
    eager_step: float
    graph_step: float
    eager_range: tuple[float, float]  # of the step: 90 of 100 published steps lie inside
    graph_range: tuple[float, float]
    steps: int  # decode steps of a request: the first token comes out of the prompt's step
    published_eager: float  # whole requests
    published_graphs: float

    @property
    def published_factor(self) -> float:
        return self.published_eager / self.published_graphs

    @property
    def step_factor(self) -> float:
        return self.eager_step / self.graph_step

    @property
    def outside(self) -> float:
        """What of the request with graphs our steps do not fill."""
        return self.published_graphs - self.steps * self.graph_step

    def request_factor(self, eager_step: float) -> float:
        """Of whole requests, if as much lies outside of eager steps as outside of graphs."""
        return (self.steps * eager_step + self.outside) / self.published_graphs


def reconciled(spec: DeviceSpec) -> Reconciled:
    """The published request beside our model of its steps on `spec`."""
    run: Any = read_object(FILE)["requests"]
    context = run["prompt_tokens"] + run["new_tokens"] // 2
    ops = step_ops(gpt2_like(), StepShape.decode(run["batch"], context), "vllm")
    eager, graph = (
        step_time(ops, spec, mode, num_reqs=run["batch"]).itl_us / 1e3 for mode in ("eager", "full")
    )
    whole = run["mean_latency_ms"]
    return Reconciled(
        len(ops), eager, graph, spec.interval(eager, "NONE"), spec.interval(graph, "FULL"),
        run["new_tokens"] - 1, whole["eager"], whole["graphs"],
    )  # fmt: skip


def told(spec: DeviceSpec) -> list[str]:
    """All published figures and the reckoning, line by line."""
    every: dict[str, Any] = read_object(FILE)
    run, steps, captures, r = every["requests"], every["steps"], every["captures"], reconciled(spec)
    low, high = (r.request_factor(step) for step in r.eager_range)
    return [
        "Published by others, with vLLM of their own:",
        f"  {run['model']}, {run['gpu']}, batch {run['batch']}, {run['prompt_tokens']} + "
        f"{run['new_tokens']} tokens: {r.published_eager} ms a request without graphs, "
        f"{r.published_graphs} with: x{r.published_factor:.1f}",
        f"    {run['source']}",
        f"  one model, a token: {steps['itl_ms']['eager']} ms eager, "
        f"{steps['itl_ms']['compiled']} compiled, {steps['itl_ms']['graphs']} with graphs",
        f"    {steps['source']}",
        f"  max_num_seqs {captures['max_num_seqs']}: captured {captures['captured']}",
        f"    {captures['source']}",
        "",
        f"The first of them by our model, on {spec.name}: a step of {r.kernels} kernels takes "
        f"{r.eager_step:.2f} ms eagerly ({r.eager_range[0]:.1f} to {r.eager_range[1]:.1f})",
        f"and {r.graph_step:.2f} as a graph ({r.graph_range[0]:.2f} to {r.graph_range[1]:.2f}): "
        f"x{r.step_factor:.1f} a step, where x{r.published_factor:.1f} a request was seen.",
        f"{r.steps} steps fill {r.steps * r.graph_step:.1f} of the {r.published_graphs} ms with "
        f"graphs. {r.outside:.1f} ms are left over for all that is no step.",
        f"Beside eager steps the same {r.outside:.1f} ms make "
        f"x{r.request_factor(r.eager_step):.1f} a request "
        f"({low:.1f} to {high:.1f} by the interval of the step).",
        f"Eagerly the request took {r.published_eager} ms, and our steps alone "
        f"{r.steps * r.eager_step:.1f}.",
    ]
