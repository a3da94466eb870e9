"""The main job: one decode step run eagerly, piecewise and as one graph; see where the time went.

  python -m mini_engine demo
  python -m mini_engine demo --prompt "Return the" --prompt "Raise"

1. A small trained checkpoint writes your prompts on a simulated GPU under NONE, PIECEWISE, FULL and
   FULL_AND_PIECEWISE. The four must agree token for token, or the command fails.
2. A decode step of a full-size model on one card and one host is predicted for transformers, for
   vLLM (or --engine) eagerly, piecewise and as one graph, and for this engine's own kernels.
3. A picture and a trace go to --out.
"""

from dataclasses import replace

from rich.box import SIMPLE
from rich.padding import Padding
from rich.text import Text

from mini_engine.cli import CheckFailed, options
from mini_engine.cli.terminal import Args, Columns, Found, Screen, lanes, table
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.engine.generation import SHIPPED
from mini_engine.serving.ladder_cost import LadderCosts
from mini_engine.sim.generate import generate, open_checkpoint
from mini_engine.sim.predict import HF_EAGER, predict
from mini_engine.sim.trace import write_trace
from mini_engine.step import capacity, cards, launch_model
from mini_engine.step.explain import Way

CONTEXT, OURS = 512, "launch-bound"  # the row of this engine: five kernels a layer, in one graph
LAUNCHED = {"NONE": "eager", "PIECEWISE": "piecewise", "FULL": "one graph"}
COLUMNS: Columns = {
    "<": lambda row: "this engine¹" if row["mode"] == OURS else row["engine"],
    "<\nas": lambda row: row["launched"].replace("piecewise", "pieces"),
    "kernels": "{0[kernels]:,}", "launches": "{0[launches]:,}",
    "CPU\nms": "{0[cpu_us]:ms}", "GPU\nms": "{0[gpu_us]:ms}", "ITL\nms": "{0[itl_us]:ms}",
    "80%\nwithin": lambda row: options.ends(row["low_us"], row["high_us"], 1e-3, "–"),
    "GPU\nbusy": "{0[gpu_utilisation]:.0%}", "pays\nafter": "{0[pays_after_replays]:,}",
}  # fmt: skip
SHARED = "prompt shape spec batch"
OPTIONS: options.Rows = {"--out DIR": (options.out_folder, "out", "for the files")}


def run(args: Args, console: Screen) -> Found:
    from mini_engine import plots

    texts, checkpoint = args.prompt or list(options.PROMPTS), open_checkpoint(SHIPPED)
    server, batch = options.server(args), args.batch
    shape, spec = server.config, server.spec
    capacity.check_batch(server.costs, batch, CONTEXT)
    host = args.host or spec.host
    hf, own = (cards.load_spec(args.spec, host, name) for name in ("transformers", OURS))
    specs = {HF_EAGER: hf, **dict.fromkeys(options.MODES[:3], spec), OURS: own}
    with console.status("writing and predicting"):
        first, *others = [generate(checkpoint, spec, texts, mode) for mode in options.MODES]
        for other in others:
            pairs = zip(texts, first.completions, other.completions, strict=True)
            if wrong := [text for text, one, two in pairs if one.tokens != two.tokens]:
                modes = f"{first.mode} and {other.mode} disagree on the prompt {wrong[0]!r}"
                raise CheckFailed(f"{modes}: a graph read or wrote the wrong memory")
        steps = {name: predict(shape, on, "FULL" if name == OURS else name, batch=batch,
                               context=CONTEXT) for name, on in specs.items()}  # fmt: skip
        args.out.mkdir(parents=True, exist_ok=True)
        lanes = {launched: steps[mode].timeline for mode, launched in LAUNCHED.items()}
        write_trace(args.out / "trace.json", {HF_EAGER: steps[HF_EAGER].timeline, **lanes})
        about = f"a decode step of {shape.name} on {spec.name}, batch {batch}, {CONTEXT} tokens of"
        about = f"{plots.PREDICTED}: {about} context, {spec.engine} on the host {spec.host}."
        plots.timeline(lanes, args.out / "timeline.png", caption=about)
    rows, nine = [], replace(spec, ops="fused9")  # what the sim captures
    for mode, step in steps.items():
        on, like = specs[mode], {HF_EAGER: "NONE", OURS: "FULL"}.get(mode, mode)
        captured = mode if mode in LAUNCHED else "NONE"
        costs = LadderCosts(shape, nine, captured, spec.batch_defaults.max_num_seqs)
        graphs = costs.of(default_capture_sizes(*spec.batch_defaults, mode=captured))
        after = launch_model.break_even_replays(
            graphs.capture_us, steps["NONE"].itl_us, step.itl_us)  # fmt: skip
        rows.append({
            **vars(step.work), **vars(Way.of(on, step.itl_us, like, batch)),
            "mode": mode, "engine": on.engine, "launched": LAUNCHED[like],
            "gpu_utilisation": step.utilisation, "graphs": graphs.graphs,
            "graph_bytes": graphs.memory_bytes, "capture_us": graphs.capture_us or None,
            "pays_after_replays": int(after) if 0 < after < float("inf") else None})  # fmt: skip
    return {
        "checkpoint": checkpoint.config.name, "prompts": texts, "texts": first.texts,
        "tokens": [done.tokens for done in first.completions],
        "modes": [generation.mode for generation in (first, *others)], **options.told(server),
        "predictions": rows}  # fmt: skip


def show(r: Args, console: Screen) -> None:
    say = console.print
    say(f"\n1. {r.checkpoint} writes (greedy, in numpy, on a simulated GPU)\n", style="bold")
    for prompt, text in zip(r.prompts, r.texts, strict=True):
        text = " ".join(("x" + text).split())[1:]  # a space in front stays
        told = Text.assemble((prompt, "bold"), text)
        say(Padding(told, (0, 0, 0, 3)), soft_wrap=False)
    same = f"{', '.join(r.modes[:-1])} and {r.modes[-1]} wrote the same"
    say(f"\n   {same} {sum(map(len, r.tokens))} tokens.\n\n2. {r.shape} on one {r.spec}, "
        f"predicted: a decode step of batch {r.batch}, {CONTEXT} tokens")  # fmt: skip
    say(table(COLUMNS, r.predictions, box=SIMPLE, padding=0))  # fits 80 columns
    rows = {row["mode"]: row for row in r.predictions}
    eager, full = rows["NONE"], rows["FULL"]
    for row in (eager, full):
        busy = row["gpu_utilisation"]
        say(lanes(row["launched"], row["itl_us"], row["cpu_us"], busy, eager["itl_us"]))
    times = eager["itl_us"] / full["itl_us"]
    say(f"   One graph: {full['launches']} launches for {eager['launches']}, the same "
        f"{full['gpu_us'] / 1e3:.1f} ms of kernels, {times:.1f} times as fast.")  # fmt: skip
    picture, trace = (f"   {r.out / name!s:<18}" for name in ("timeline.png", "trace.json"))
    say(f"   Host: {r.host}, whose CPU makes the eager times. 80% within: of what others\n"
        "   measured, and the fit had not seen, 80% lay so near. Capture: vLLM's ladder;\n"
        "   it pays for itself after that many steps.\n"
        "   ¹ Five kernels a layer in one graph; not yet measured.\n\n"
        f"3. Look\n{picture} CPU lane and GPU lane, eager above graph\n"
        f"{trace} the same steps, for https://ui.perfetto.dev\n\n"
        "Next: crossover, ladder --batch 33, serve, or any command of --help")  # fmt: skip
