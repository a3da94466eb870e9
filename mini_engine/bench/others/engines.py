"""The adapters: each loads an engine for a job, and hands over its tokens as its caller gets them.

`Adapter(job)` loads the model and captures its graphs. `lap(prompts)` runs one batch and yields, as
soon as the interface has them, pieces of (request, new tokens); child.py looks at the clock then.
Written to the interfaces of the commits that each names, imported when needed: this runs under the
Python of the other engine.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence

from mini_engine.bench.others.child import Job, Piece

BUDGET = 2048  # tokens of prompts in a step of ours
LARGEST_GRAPH = ("cuda_graph_max_bs_decode", "cuda_graph_max_bs")  # SGLang's word of 2026, of 2025
NEARLY_GREEDY, RUNG, MOST = 1e-5, 16, 512  # nano-vllm's
Prompts = Sequence[Sequence[int]]


class Ours:
    """This engine, asked as the others are: what `generate` runs on this machine. A step ends when
    its tokens have been read back, as for any caller."""

    def __init__(self, job: Job) -> None:
        import torch

        from mini_engine.bench.decode_setup import BLOCK_SIZE
        from mini_engine.cuda.generate import dtype_for, nearest_backend, runner_of
        from mini_engine.cuda.weights import load_weights
        from mini_engine.dispatch.default_ladder import default_capture_sizes
        from mini_engine.dispatch.dispatcher import GraphDispatcher
        from mini_engine.engine.batch import SchedulerLimits
        from mini_engine.engine.engine import Engine
        from mini_engine.model.config import ModelConfig

        self.mode = torch.inference_mode()  # of the whole process, which runs nothing else
        self.mode.__enter__()
        config, backend = ModelConfig.from_folder(job.model), nearest_backend(print)
        weights = load_weights(config, job.model, backend.device, dtype_for(backend, print))
        limits = SchedulerLimits(
            max_num_seqs=job.batch, max_num_batched_tokens=BUDGET, max_model_len=job.room,
            num_blocks=1 + job.batch * -(-job.room // BLOCK_SIZE), block_size=BLOCK_SIZE,
        )  # fmt: skip
        mode = "NONE" if job.eager else "FULL_DECODE_ONLY"
        sizes = default_capture_sizes(job.batch, BUDGET, capture_sizes=[job.batch], mode=mode)
        dispatcher = GraphDispatcher(mode, sizes, job.batch)
        runner = runner_of(weights, limits, dispatcher, backend, 5, print)
        if runner.capture().dropped:
            raise torch.OutOfMemoryError(f"no memory to capture batch {job.batch}")
        self.engine, self.tokens = Engine(runner, limits, dispatcher), job.tokens

    def lap(self, prompts: Prompts) -> Iterator[list[Piece]]:
        from mini_engine.engine.batch import Request

        for index, prompt in enumerate(prompts):
            self.engine.submit(Request(str(index), tuple(prompt), self.tokens))
        while record := self.engine.step():
            yield [(int(request.request_id), [token]) for request, token in record.written]


class Vllm:
    """vLLM 0.33.0, and its V1 engine in 001999d (2025): `LLMEngine.step` hands over tokens, with
    `RequestOutputKind.DELTA` those that are new. The engine itself works in another process, as it
    does by default: a token's time holds the way from there."""

    def __init__(self, job: Job) -> None:
        vllm = importlib.import_module("vllm")
        kinds = importlib.import_module("vllm.sampling_params").RequestOutputKind
        self.engine = vllm.LLM(
            model=job.model,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=job.room,
            max_num_seqs=job.batch,
            gpu_memory_utilization=job.memory,
            enable_prefix_caching=False,
            enforce_eager=job.eager,
        ).llm_engine
        self.params = vllm.SamplingParams(
            temperature=0.0, max_tokens=job.tokens, ignore_eos=True, detokenize=False,
            output_kind=kinds.DELTA,
        )  # fmt: skip
        self.laps = 0

    def lap(self, prompts: Prompts) -> Iterator[list[Piece]]:
        self.laps += 1
        for index, prompt in enumerate(prompts):
            words = {"prompt_token_ids": list(prompt)}
            self.engine.add_request(f"{self.laps}-{index}", words, self.params)
        while self.engine.has_unfinished_requests():
            outputs = self.engine.step()
            yield [(int(one.request_id.split("-")[1]), one.outputs[0].token_ids) for one in outputs]


class Sglang:
    """SGLang 18bfdd1 (2025) and 001067f (2026): `Engine.generate` streams a piece of one request
    after the other, whose number is its "index" (`TokenizerManager._handle_batch_request`).
    "completion_tokens" counts the tokens so far; "output_ids" ends with the new ones, whether a
    version sends all or only those. The scheduler works in another process, and its pieces are
    collected by an event loop here: where that comes late, several tokens are one piece."""

    def __init__(self, job: Job) -> None:
        known = importlib.import_module("sglang.srt.server_args").ServerArgs.__dataclass_fields__
        self.engine = importlib.import_module("sglang").Engine(
            model_path=job.model,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            context_length=job.room,
            max_running_requests=job.batch,
            mem_fraction_static=job.memory,
            disable_radix_cache=True,
            disable_cuda_graph=job.eager,
            **{name: job.batch for name in LARGEST_GRAPH if name in known},
        )
        self.params = {"temperature": 0.0, "max_new_tokens": job.tokens, "ignore_eos": True}

    def lap(self, prompts: Prompts) -> Iterator[list[Piece]]:
        given, known = [list(prompt) for prompt in prompts], [0] * len(prompts)
        pieces = self.engine.generate(input_ids=given, sampling_params=self.params, stream=True)
        for piece in pieces:
            index = piece.get("index", 0)  # missing where a version unpacks a batch of one
            new = piece["meta_info"]["completion_tokens"] - known[index]
            if new > 0:
                known[index] += new
                yield [(index, piece["output_ids"][-new:])]


class Nano:
    """nano-vllm bb823b3: `LLM.step` returns the requests that have ended, and a number: the tokens
    of a prompt step, or minus the requests of a decode step. Tokens come out at the end only, and
    are zeros until then; but a step waits for them, so its end is when they were there. It runs
    more than 512 requests eagerly, and captures multiples of 16. It refuses temperature 0; at 1e-5
    a token has to be within about 1e-4 of the best one to be drawn. Qwen3 only."""

    def __init__(self, job: Job) -> None:
        if job.batch > MOST and not job.eager:
            raise ValueError(f"a batch of {job.batch}: it has graphs for {MOST} at most")
        nano = importlib.import_module("nanovllm")
        self.llm = nano.LLM(
            job.model,
            max_model_len=job.room,
            max_num_seqs=-(-job.batch // RUNG) * RUNG,
            gpu_memory_utilization=job.memory,
            enforce_eager=job.eager,
        )
        self.params = nano.SamplingParams(
            temperature=NEARLY_GREEDY, max_tokens=job.tokens, ignore_eos=True
        )

    def lap(self, prompts: Prompts) -> Iterator[list[Piece]]:
        for prompt in prompts:
            self.llm.add_request(list(prompt), self.params)
        ended: dict[int, list[int]] = {}
        computed, length = 0, len(prompts[0])
        while not self.llm.is_finished():
            outputs, count = self.llm.step()
            rows = range(len(prompts))
            if count > 0:  # prompts: those that are whole now have their first token
                rows = range(computed // length, (computed + count) // length)
                computed += count
            elif -count != len(prompts):
                raise ValueError(
                    f"a step of {-count} of {len(prompts)} requests: its KV cache is too small"
                )
            yield [(row, [0]) for row in rows]
            ended.update(outputs)
        self.written = [list(ended[number]) for number in sorted(ended)]
