"""What fits on a card: weights, graphs, activations, KV cache, and the least time of one step.

  python -m mini_engine capacity --gpu rtx4070 --model qwen3-1.7b --context 10000 --quant int4
  python -m mini_engine capacity --spec rtx4060 --shape qwen3-8b --file-gb 5.5 --context 8192

Two sums tell most of what a card can do: bytes that must be held, against its memory, and bytes
that one token must read, against its bandwidth. The second is the floor of ITL: no engine, graph or
kernel can be faster. A GGUF file goes by its mix (--quant q4_k_m) or by its size. Engines differ in
what they keep. What a step takes above its floor, `explain` predicts.
"""

from mini_engine.cli import options
from mini_engine.cli.terminal import Args, Columns, Found, Screen, table
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.step.capacity import capacity, check_context
from mini_engine.step.storage import stored_as

SHARED, DEFAULTS = "shape spec stored batch context", {"context": 4096}
SIZE = "of the weights, instead of --quant: 1e9 bytes"
OPTIONS: options.Rows = {"--file-gb GB": (options.between(1e-9, 1e9), None, SIZE)}


def run(args: Args, console: Screen) -> Found:
    if args.file_gb and args.quant:
        raise ValueError(f"--file-gb says how large weights are: leave out --quant {args.quant}")
    server = options.server(args)
    config, spec, batch, context = server.config, server.spec, args.batch, args.context
    check_context(config, context)
    file_bytes = round((args.file_gb or 0) * 1e9)
    server.stored = stored = stored_as(config, args.quant, args.kv_dtype, file_bytes)
    # of vLLM's default sizes, those of decode batches have a full graph
    seqs, tokens = spec.batch_defaults
    full = [size for size in default_capture_sizes(seqs, tokens) if size <= seqs]
    report = capacity(config, spec, context=context, batch=batch, stored=stored, capture_sizes=full)
    return {**options.told(server), "full_graphs": len(full), "report": report}


def show(r: Args, console: Screen) -> None:
    say, report = console.print, r.report
    say(f"{r.shape} on {r.spec}: weights {r.quant}, cache {r.kv_dtype}, batch {r.batch:,}, "
        f"context {r.context:,}, {r.full_graphs} full graphs")  # fmt: skip
    columns: Columns = {
        "<item": "{0[0]}", "GiB": lambda row: f"{row[1] / 2**30:,.3f}", "<what it is": "{0[2]}",
    }  # fmt: skip
    rows = report.rows()
    say(table(columns, rows, bold=[len(rows) - 1]))
    made_for = f" of memory; the model was made for {report.model_context:,}"
    say(f"longest context of one request: {report.max_context:,} tokens"
        f"{made_for if report.max_context > report.model_context else ''}\n"
        f"largest batch at {r.context:,} tokens: {report.max_batch:,}\n"
        f"floor of ITL: {report.floor_ms:.3f} ms at the bandwidth on paper, "
        f"{report.copy_floor_ms:.3f} ms at what a copy reaches")  # fmt: skip
