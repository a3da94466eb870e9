// One decode step on two lanes. The arithmetic is that of mini_engine/step/launch_model.py; a test moves
// these sliders and compares what the page says with what the Python says.
"use strict";

const FRACTIONS = 2; // digits after the point, in ms

function step(n, kernel, spec) {
  // Returns, in µs: when each kernel starts, and the ITL, launched one by one and as one graph.
  // The engine works before a step, while the GPU waits, or ahead, beside the GPU.
  const itl = (issued, ended) =>
    spec.host_step_us + spec.copy_us + Math.max(ended, issued + spec.ahead_us) + spec.sync_us;
  const copied = spec.kernel_floor_us + spec.stream_gap_us; // the copy of the inputs has ended
  const cpuLate = n * spec.cpu_op_us + kernel;
  const first = Math.max(spec.cpu_op_us, copied);
  const gpuLate = first + n * kernel + (n - 1) * spec.stream_gap_us;
  const launch = spec.graph_launch_us + (spec.graph_node_ns * n) / 1000;
  const begin = Math.max(launch, copied);
  const run = n * kernel + (n - 1) * spec.graph_gap_us;
  return {
    eager: itl(n * spec.cpu_op_us, Math.max(cpuLate, gpuLate)),
    graph: itl(launch, begin + run),
    eagerStarts: starts(n, kernel, (i) => (i + 1) * spec.cpu_op_us, copied, spec.stream_gap_us),
    graphStarts: starts(n, kernel, () => launch, copied, spec.graph_gap_us),
    eagerIssued: n * spec.cpu_op_us,
    graphIssued: launch,
  };
}

function starts(n, kernel, issued, free, gap) {
  const found = [];
  for (let i = 0; i < n; i++) {
    const at = Math.max(issued(i), free);
    found.push(at);
    free = at + kernel + gap;
  }
  return found;
}

function lanes(title, at, issued, itl, kernel, spec, whole) {
  // An SVG of the CPU's lane above the GPU's; `whole` µs are its width.
  const before = spec.host_step_us + spec.copy_us, scale = 1000 / whole;
  const ready = before + issued + spec.ahead_us; // the CPU, for the next step
  const x = (us) => (us * scale).toFixed(2);
  const box = (from, to, y, name) =>
    `<rect class="${name}" x="${x(from)}" y="${y}" width="${x(Math.max(to - from, 0))}" height="34"/>`;
  const runs = at.map((t) => `M${x(before + t)} 66h${x(kernel)}v34h-${x(kernel)}z`).join("");
  return `<figure><figcaption>${title}</figcaption>
    <svg viewBox="0 0 1000 104" preserveAspectRatio="none" role="img" aria-label="${title}">
    ${box(0, before, 18, "host")}${box(before, before + issued, 18, "issue")}
    ${box(before + issued, ready, 18, "host")}${box(ready, itl, 18, "wait")}
    <rect class="idle" x="0" y="66" width="${x(itl)}" height="34"/><path class="run" d="${runs}"/></svg>
    <div class="step-names"><span>CPU</span><span>GPU</span></div></figure>`;
}

function show() {
  const byId = (id) => document.getElementById(id);
  const figures = JSON.parse(byId("step-figures").textContent);
  const value = (id) => Number(byId(id).value);
  const n = value("kernels"), batch = value("batch");
  const spec = { ...figures, cpu_op_us: value("launch") };
  // What the CPU does for each request is in the GPU's way.
  spec.host_step_us += batch * figures.request_us;
  const kernel = value("kernel") + ((batch - 1) * figures.keys_us) / n;
  const found = step(n, kernel, spec);
  for (const id of ["kernels", "launch", "kernel", "batch"]) {
    byId(`${id}-value`).textContent = value(id).toLocaleString("en");
  }
  const busy = (itl) => Math.round((100 * n * kernel) / itl);
  const saved = Math.round((100 * (found.eager - found.graph)) / found.eager);
  byId("eager-itl").textContent = (found.eager / 1000).toFixed(FRACTIONS);
  byId("graph-itl").textContent = (found.graph / 1000).toFixed(FRACTIONS);
  byId("eager-busy").textContent = busy(found.eager);
  byId("graph-busy").textContent = busy(found.graph);
  byId("saved").textContent = saved;
  const late = n * spec.cpu_op_us + kernel >
    Math.max(spec.cpu_op_us, spec.kernel_floor_us + spec.stream_gap_us) +
    n * kernel + (n - 1) * spec.stream_gap_us;
  byId("verdict").textContent = late
    ? "One by one, the GPU waits for the CPU: the step is launch-bound."
    : "One by one, the CPU is ahead of the GPU: launches are hidden, only gaps are saved.";
  const whole = Math.max(found.eager, found.graph);
  byId("step-lanes").innerHTML =
    lanes(`${n.toLocaleString("en")} launches, one by one`, found.eagerStarts, found.eagerIssued,
      found.eager, kernel, spec, whole) +
    lanes("one launch of a graph", found.graphStarts, found.graphIssued,
      found.graph, kernel, spec, whole) +
    `<p class="step-legend"><span class="host">engine</span><span class="issue">CPU launches</span>
     <span class="wait">CPU waits</span><span class="run">GPU runs a kernel</span>
     <span class="idle">GPU waits</span></p>`;
}

document.addEventListener("DOMContentLoaded", () => {
  if (!document.getElementById("step")) return;
  document.querySelector(".step-sliders").addEventListener("input", show);
  show();
});
