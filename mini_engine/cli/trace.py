"""Look at one decode step: where the CPU was, where the GPU was, who waited for whom.

  python -m mini_engine trace --mode NONE --mode FULL --batch 4 -o out/step.json
  python -m mini_engine trace --recorded sglang-qwen3-8b-graph

The first predicts a decode step in each mode and writes a file for https://ui.perfetto.dev. Look
for the launches on track CPU (one for each kernel, or one for a graph), for what track GPU does
below them, and for the gaps in it. The second takes a step apart that somebody has recorded, and
draws it, beside a prediction where the model is one of ours. Of your own file (torch.profiler's
export_chrome_trace, .json or .json.gz) it takes the "ProfilerStep" of median length, or all;
--shape, --mode and the rest predict your step beside it.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mini_engine.cli import options
from mini_engine.cli.terminal import Args, Columns, Found, Screen, lanes, table
from mini_engine.model.config import SHAPES
from mini_engine.sim import recorded
from mini_engine.sim.predict import HF_EAGER, predict
from mini_engine.sim.trace import GPU, TraceEvent, summary, write_trace
from mini_engine.step.capacity import check_batch
from mini_engine.step.cards import load_spec

OPEN_IT = "open it at https://ui.perfetto.dev or chrome://tracing"
COLUMNS: Columns = {
    "<timeline": "{0[0]}", "events": "{0[1][events]:,}", "length µs": "{0[1][length_us]:,.1f}",
    "CPU at work µs": "{0[1][cpu_us]:,.1f}", "GPU at work µs": "{0[1][gpu_us]:,.1f}",
    "GPU busy": "{0[1][utilisation]:.0%}"}  # fmt: skip
SHARED, DEFAULTS = "shape spec batch context", {"shape": None, "context": 512}
KNOWN = ", ".join(recorded.recording_names())
OPTIONS: options.Rows = {
    "--recorded NAME": (str, None, f"take it apart: {KNOWN}, or a profiler's file"),
    "--mode NAME": (list, None, f"as of `demo`, or {HF_EAGER}; again for more (default: three)"),
    "-o --out FILE": (options.json_out, None, "(default: in out, by what is asked)")}  # fmt: skip


def run(args: Args, console: Screen) -> Found:
    out = args.out or Path("out/recorded.json" if args.recorded else "out/trace.json")
    if args.recorded:
        return _recorded(args, out)
    args.shape = args.shape or "qwen3-0.6b"
    timelines = {mode: _predicted(args, mode) for mode in args.mode or options.MODES[:3]}
    write_trace(out, timelines)
    return {**options.told(options.server(args)), "file": out, "timelines": summary(timelines)}


def _predicted(args: Args, mode: str) -> Sequence[TraceEvent]:
    server = options.server(args)
    spec = server.spec
    check_batch(server.costs, args.batch, args.context)
    if mode == HF_EAGER:  # the ops of transformers are issued by its own Python
        spec = load_spec(args.spec, args.host or spec.host, args.engine or "transformers")
    return predict(server.config, spec, mode, batch=args.batch, context=args.context).timeline


def _recorded(args: Args, out: Path) -> Found:
    from mini_engine import plots
    from mini_engine.plots.figures import RUNS, WAITS, step_bars

    if out.resolve() == Path(args.recorded).resolve():
        raise ValueError(f"-o {out}: this is read: give another name")
    recording = recorded.load_recording(args.recorded, args.batch)
    if recording.like and recording.like["shape"] in SHAPES:
        vars(args).update(recording.like)  # the step that was recorded, as we have it
    events, found = recording.events, recorded.anatomy(recording)
    steps, timelines = {"recorded": found}, dict[str, Sequence[TraceEvent]]()
    if events:  # names that fit their boxes: what a kernel is for, and the calls that launch
        timelines["recorded"] = [replace(e, name=recorded.kind_of(e.name) if e.lane == GPU else
                                         e.name if e.category != "host" else "")
                                 for e in events]  # fmt: skip
    if args.shape:
        timelines["predicted"] = _predicted(args, (args.mode or ["NONE"])[0])
        steps["predicted"] = recorded.anatomy_of(timelines["predicted"], whole=not events)
    runs = [f"{name} {step.busy_us / step.gpu_us:.0%} of {step.gpu_us / 1e3:.2f} ms"
            for name, step in steps.items()]  # fmt: skip
    about = {"title": f"A kernel runs {', '.join(runs)}",
             "caption": f"{recording.what}. {recording.source.split(',')[0]}"}  # fmt: skip
    picture = out.with_suffix(".png")
    if events:
        zoom_us = max(60.0, found.gpu_us / (found.layers or 1e9) // 3)
        plots.timeline(timelines, picture, zoom_us=zoom_us, middle=True, **about)
    else:  # only sums are known
        bars = {name: {RUNS: step.busy_us, WAITS: step.gpu_us - step.busy_us}
                for name, step in steps.items()}  # fmt: skip
        step_bars(bars, picture, **about)
    if timelines:
        write_trace(out, timelines | ({"recorded": events} if events else {}))
    return {
        "what": recording.what, "source": recording.source, **vars(found), "gpu_us": found.gpu_us,
        "picture": picture, "file": out if timelines else None,
        "timelines": summary(timelines), "predicted": steps.get("predicted"),
        **(options.told(options.server(args)) if args.shape else {})}  # fmt: skip


def show(r: Args, console: Screen) -> None:
    say, shape = console.print, ""
    if r.shape:
        shape = f"{r.shape}, batch {r.batch}, context {r.context:,}, on {options.on(r)}"
    if not r.recorded:
        say(table(COLUMNS, r.timelines.items()))
        longest_us = max(one["length_us"] for one in r.timelines.values())
        for name, one in r.timelines.items():
            say(lanes(name, one["length_us"], one["cpu_us"], one["utilisation"], longest_us))
        return say(f"Predicted: {shape}.\n{r.file}: {OPEN_IT}")
    say(f"{r.what}\n({r.source})")
    if r.kinds:
        columns: Columns = {
            "<kind": "{0[0]}", "count": lambda row: f"{row[1].count:,.0f}" if row[1].count else "",
            "a layer": lambda row: f"{row[1].count / r.layers:.1f}" if r.layers else "",
            "µs": "{0[1].us:,.0f}", "share": lambda row: f"{row[1].us / r.busy_us:.0%}",
        }  # fmt: skip
        say(table(columns, r.kinds.items()))
    counts = {"kernels": r.kernels, "launches and copies": r.launches, "graphs": r.graph_launches}
    if told := [f"{count:,.0f} {what}" for what, count in counts.items() if count]:
        say(f"{', '.join(told)} a step")
    if r.idle_in_launch_us is not None:
        shares = [us / r.gpu_us for us in (r.busy_us, r.idle_in_launch_us, r.idle_us)]
        say("Of {:,.0f} µs the GPU is {:.0%} at work, {:.0%} waiting for launch calls, {:.0%} for "
            "other work of the CPU".format(r.gpu_us, *shares))  # fmt: skip
    elif r.idle_us is not None:
        say(f"Of {r.gpu_us:,.0f} µs the GPU is {r.busy_us / r.gpu_us:.0%} at work")
    if step := r.predicted:
        say(f"Predicted: {step.kernels:,} kernels, {step.launches:,} launches and copies; of "
            f"{step.gpu_us:,.0f} µs the GPU is {step.busy_us / step.gpu_us:.0%} at work ({shape})"
            )  # fmt: skip
    say(f"Picture: {r.picture}")
    if r.file:
        say(f"{r.file}: {OPEN_IT}")
