"""Am I launch-bound? Where the time of your decode step goes, and what a CUDA graph would save.

  python -m mini_engine explain --shape qwen2.5-7b --spec l40s --batch 4 --context 1024 --itl 22
  python -m mini_engine explain --shape qwen3-0.6b --spec h100 --itl 8.7 --mode NONE

Give it the inter-token latency that you measured, in ms. It answers with three parts: bytes, as
fast as the card reads; beginnings and ends of kernels; and the time in which the GPU waits for the
CPU, which alone a graph takes away. Say with --mode how the step was launched (NONE is vLLM's
--enforce-eager); otherwise the nearest prediction decides. From an eager step it also tells how
fast your host is. Without --itl it explains what is predicted.
"""

from mini_engine.cli import options
from mini_engine.cli.terminal import Args, Found, Screen, table, two_digits
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.step.run import WAYS

SAVES = "one graph of the step would save {share:.0%} of it ({low:.0%} to {high:.0%})."
VERDICTS = {
    "launch-bound": f"Launch-bound: {SAVES}",
    "GPU-bound": "GPU-bound: no graph saves what one feels. Fewer bytes do, or a faster card.",
    "open": f"It may be launch-bound: {SAVES}",
    "FULL": "It runs as one graph: what is left is bytes, and kernels that are better or fewer.",
}
SHARED = "shape spec stored batch context"
OPTIONS: options.Rows = {
    "--itl MS": (options.between(1e-3, 1e6), None, "the inter-token latency that you measured"),
    "--mode": (tuple(WAYS), None, "how it ran (default: as the nearest prediction)")}  # fmt: skip


def run(args: Args, console: Screen) -> Found:
    server = options.server(args)
    found = server.explain(args.batch, args.context, args.itl, args.mode)
    saved = dict(zip(("share", "low", "high"), found.saved(), strict=True))
    sizes = default_capture_sizes(*server.spec.batch_defaults)
    listed = " ".join(map(str, [*(n for n in sizes if n < args.batch), args.batch]))
    useless = saved["high"] < 0.03  # not worth a capture
    return {
        **options.told(server), **vars(found), "looks_like": not args.mode, "saved": saved,
        "verdict": "launch-bound" if found.launch_bound else "GPU-bound" if useless else "open",
        "options": "--enforce-eager" if useless else f"--cudagraph-capture-sizes {listed}",
    }  # fmt: skip


def show(r: Args, console: Screen) -> None:
    say, itl_ms = console.print, r.itl_us / 1e3
    itl_ms = f"{itl_ms:g}" if r.measured else two_digits(itl_ms)
    say(f"{r.shape} on {options.on(r)}, batch {r.batch:,}, context {r.context:,}: "
        f"{itl_ms} ms in mode {r.mode}, {'measured' if r.measured else 'predicted'}")  # fmt: skip
    parts = {
        "bytes, as fast as the card reads": r.floor_us,
        "beginnings and ends of kernels": r.kernels_us,
        "the GPU waits for the CPU": r.cpu_us,
    }
    columns = {"<where it goes": "{0[0]}", "ms": "{0[1]:ms}", "share": "{0[2]:.0%}"}
    say(table(columns, [(what, us, us / r.itl_us) for what, us in parts.items()]))
    for name, way in r.ways.items():
        say(f"{name:9} is predicted to take {options.ms(way)}")
    if r.measured and r.looks_like:
        fit = [n for n, way in r.ways.items() if (way.low_us or 1e99) <= r.itl_us <= way.high_us]
        near = f"The prediction of {r.mode} lies nearest to yours"
        near = f"{itl_ms} ms fits {' and '.join(fit)} alike" if len(fit) > 1 else near
        say(f"{near}: say with --mode how you launch. Below, it is taken for {r.mode}.")
    if r.host_factor:
        say(f"Your host takes {r.host_factor:.1f} times as long as {r.host}.")
    say(VERDICTS[r.mode if r.mode == "FULL" else r.verdict].format(**r.saved))
    say(f"For vllm serve: {r.options}\n{options.WITHIN}")
