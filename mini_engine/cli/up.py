"""Serve clients that speak OpenAI's API: a model, or a prediction of one.

  python -m mini_engine up
  python -m mini_engine up --backend cuda --model Qwen/Qwen3-0.6B --mode FULL
  python -m mini_engine up --predict qwen3-8b --spec h100 --engine vllm --mode NONE

The endpoint has /v1/completions, /v1/chat/completions, /v1/models, /health and /metrics, for any
client of OpenAI's, guidellm, aiperf and `vllm bench serve`. It needs `pip install .[serve]`.

With --model the engine runs a checkpoint, and requests of all clients share its batches. With
--predict nothing is computed: the scheduler decides every batch, and its tokens come when the step
should have ended on that card (--spec, --cpu, --engine), in real time. Prompts are counted in the
tokens of --tokenizer. SIGTERM and Ctrl-C end it: who is being served is served to the end.
"""

import asyncio

from mini_engine.cli import options
from mini_engine.cli.terminal import Args, Found, Screen, form
from mini_engine.engine.generation import SHIPPED
from mini_engine.serving.replay import RealTime

SHARED = "mode limits sizes stored"
OPTIONS: options.Rows = {
    "--model NAME": (str, SHIPPED, "checkpoint folder, or a hub id (default: our own)"),
    "--backend": (("sim", "cuda"), "sim", "what runs it"),
    "--predict NAME": (str, None, "a shape (as `serve --shape`), instead of a checkpoint"),
    **{flags.replace("--host", "--cpu"): row for flags, row in options.SHARED["spec"].items()},
    "--tokenizer NAME": (str, SHIPPED, "with --predict: folder or hub id (default: our own)"),
    "--max-model-len N": (options.positive, None, "tokens of a request (default: 16,384 at most)"),
    "--steps-per-replay K": (options.positive, 1, "cuda: decode steps in one graph"),
    "--no-prefix-caching": (bool, False, "requests share no blocks"),
    "--max-queue N": (options.counted, 1000, "requests that may wait beside those that run"),
    "--host ADDRESS": (str, "127.0.0.1", "to listen at; 0.0.0.0: everybody may come"),
    "--port N": (options.between(0, 65535, int), 8000, "0: any that is free"),
    "--api-key KEY": (str, None, "that clients have to send (default: none)"),
    "--drain SECONDS": (options.between(0, 86400), 30.0, "for those being served")}  # fmt: skip


def run(args: Args, console: Screen) -> Found:
    from mini_engine.endpoint import app, engines

    caching = not args.no_prefix_caching
    if args.predict:
        server = options.server(Args(**{**vars(args), "shape": args.predict, "host": args.cpu}))
        backend = engines.predicted(server, args.mode, args.capture_sizes,
                                    prefix_caching=caching, tokenizer=args.tokenizer)  # fmt: skip
        about = options.on(Args(**options.told(server)))
        console.print(f"predicted, in real time: {about}; {server.itl(1, 1024, args.mode)} alone")
    else:
        same = ("spec", "max_num_seqs", "max_num_batched_tokens", "max_model_len",
                "steps_per_replay")  # fmt: skip
        backend = engines.real(
            str(args.model), args.backend, args.mode, args.capture_sizes, console.print,
            prefix_caching=caching, **{name: getattr(args, name) for name in same})  # fmt: skip
    core = asyncio.run(app.serve(
        backend, args.host, args.port, max_queue=args.max_queue, api_key=args.api_key,
        drain_s=args.drain, tell=console.print))  # fmt: skip
    counted, steps = core.metrics, core.metrics.steps
    itl = backend.steps.replica.report.itl if isinstance(backend.steps, RealTime) else None
    return {"model": backend.model, "api_key": args.api_key and "given", "ended": counted.ended,
            "prompt_tokens": counted.prompt_tokens, "tokens": counted.generated_tokens,
            "itl_p50_us": itl.percentile(50) if itl and itl.count else None,
            "steps": {f"{mode} {rung}": n for (mode, rung), n in steps.items()}}  # fmt: skip


def show(r: Args, console: Screen) -> None:
    ended = ", ".join(f"{n:,} {why}" for why, n in sorted(r.ended.items())) or "none"
    steps = sum(r.steps.values())
    console.print(f"{r.model}: requests: {ended}; {r.tokens:,} tokens in {steps:,} steps")
    if r.itl_p50_us:
        console.print(form("ITL p50, predicted for these steps: {:ms} ms", r.itl_p50_us))
