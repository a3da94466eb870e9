// The race: one decode step, several ways, on the lanes of CPU and GPU, and the text that it writes.
// Every number is of the engine's table (course/draw/ch00_race.py): `lanes`, `prompt`, `words`,
// `slower`, `shown` (which ways), `batch`; `recorded`, and which of the two is the `view`. anywidget's contract: render({ model, el }).

const STRIPE = 9; // pixels from one to the next in the GPU's lane: a kernel is thinner than a pixel
const ms = (us) => (us / 1000).toFixed(1);
const percent = (share) => `${Math.round(100 * share)}%`;

// Batches of the slider: each one up to 16, then ever larger steps.
const BATCHES = [...new Set(Array.from({ length: 65 }, (_, i) => Math.round(2 ** (i / 8))))];

function step(lane, at) {
  const itl = lane.itl[at], before = lane.before?.[at] ?? 0;
  return { itl, before, busy: lane.busy[at], issued: before + lane.issue };
}

function lanes(lane, now, longest, pixels) {
  // An SVG, 1000 wide for the longest step: the CPU's lane above, the GPU's below.
  const x = (us) => Math.max(0, (1000 * us) / longest).toFixed(1);
  const box = (name, from, to, y) =>
    `<rect class="${name}" x="${x(from)}" y="${y}" width="${Math.max(2, x(to - from))}" height="18"/>`;
  const known = lane.before !== undefined; // the CPU's lane: a recording has none
  const first = known ? now.before + lane.issue / lane.launches : 0, end = now.itl - (lane.sync ?? 0);
  const count = Math.max(4, Math.min(lane.kernels, Math.round((pixels * now.itl) / longest / STRIPE)));
  const pace = (end - first) / count, wide = now.busy / count;
  let stripes = "";
  for (let i = 0; i < count; i++) stripes += `M${x(first + i * pace)} 26h${x(wide)}v18h-${x(wide)}z`;
  return `<svg viewBox="0 0 1000 46" preserveAspectRatio="none" aria-hidden="true">
    ${box("idle", 0, now.itl, 26)}
    ${known ? box("idle", 0, now.itl, 2) + box("host", 0, now.before, 2) + box("issue", now.before, now.issued, 2) : ""}
    ${lane.beside ? box("host", now.issued, now.issued + lane.beside, 2) : ""}
    <path class="run" d="${stripes}"/></svg>`;
}

function sentence(ways, steps, batch) {
  const name = (lane) => lane.name.replace(",", "");
  const told = ways.map((lane, i) =>
    `${name(lane)} ${ms(steps[i].itl)} ms a step, the GPU busy ${percent(steps[i].busy / steps[i].itl)}`);
  const [slow, fast] = [steps.at(-2), steps.at(-1)];
  return `At batch ${batch}: ${told.join("; ")}. ${name(ways.at(-1))} is ` +
    `${(slow.itl / fast.itl).toFixed(1)} times as fast as ${name(ways.at(-2))}.`;
}

function render({ model, el }) {
  const views = [
    { lanes: model.get("shown").map((way) => model.get("lanes")[way]), batches: BATCHES, about: model.get("about"), at: (batch) => batch - 1 },
    { ...model.get("recorded"), at: (batch) => model.get("recorded").batches.indexOf(batch) },
  ];
  const words = model.get("words"), prompt = model.get("prompt"), slower = model.get("slower");
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  el.classList.add("race");
  el.innerHTML = `<div class="race-ways"></div>
    <div class="race-bar"><b class="race-ask">How many requests at once, until a graph gains little? Drag.</b>
      <label>batch <input type="range" min="0"> <output></output></label>
      <button type="button" class="pause" aria-pressed="false">pause</button>
      <span class="race-key issue">CPU launches</span><span class="race-key host">engine</span>
      <span class="race-key run">GPU computes</span><span class="race-key idle">waits</span>
      <span class="race-views" role="group" aria-label="which numbers"><button type="button">predicted</button> <button type="button">recorded</button></span></div>
    <p class="race-says" role="status" aria-live="polite"></p><p class="race-says about"></p>`;
  const [slider, output, button] = ["input", "output", ".pause"].map((tag) => el.querySelector(tag));
  const each = (name) => [...el.querySelectorAll(name)];
  let view, ways, texts, steps = [], began = performance.now(), paused = false, frame = 0;

  function draw() {
    const batch = model.get("batch");
    steps = ways.map((lane) => step(lane, view.at(batch)));
    const longest = Math.max(...steps.map((now) => now.itl));
    slider.value = view.batches.findIndex((known) => known >= batch);
    slider.setAttribute("aria-valuetext", `batch ${batch}`);
    output.textContent = batch;
    each(".race-lanes").forEach((lane, i) => { lane.innerHTML = lanes(ways[i], steps[i], longest, lane.clientWidth); });
    each(".race-ms").forEach((of, i) => {
      of.dataset.us = steps[i].itl;
      of.firstChild.textContent = `${ms(steps[i].itl)} ms`;
      of.lastChild.textContent = `GPU busy ${percent(steps[i].busy / steps[i].itl)}`;
    });
    began = performance.now();
    if (still.matches) write(slower * steps.at(-1).itl * words.length);
  }
  function turn() { // to the other view, at the nearest batch that it has
    view = views[model.get("view")];
    ways = view.lanes;
    el.dataset.view = model.get("view");
    el.querySelector(".race-ways").innerHTML = ways.map((lane) => `<div class="race-way">
      <div class="race-who"><b>${lane.name}</b> <span>${lane.launches.toLocaleString("en")} launches</span></div>
      <div class="race-lanes"></div><p class="race-text" aria-hidden="true"></p>
      <div class="race-ms"><b></b> <span></span></div></div>`).join("");
    texts = each(".race-text");
    el.querySelector(".about").textContent = view.about;
    each(".race-views button").forEach((one, i) => one.setAttribute("aria-pressed", i === model.get("view")));
    slider.max = view.batches.length - 1;
    model.set("batch", view.batches.find((known) => known >= model.get("batch")) ?? view.batches.at(-1));
    says();
  }
  const says = () => { el.querySelector(".race-says").textContent = sentence(ways, steps, model.get("batch")); };

  function write(us) { // what each has written after so many slowed-down µs
    steps.forEach((now, i) => {
      const done = Math.floor(us / slower / now.itl);
      const text = prompt + words.slice(0, Math.min(done, words.length)).join("");
      if (texts[i].textContent !== text) texts[i].textContent = text;
    });
  }
  function tick(now) {
    if (!el.isConnected) return;
    const whole = slower * words.length * steps.at(-2).itl; // then all begin again
    if (!paused && !still.matches) write((1000 * (now - began)) % (1.1 * whole));
    frame = requestAnimationFrame(tick);
  }

  slider.addEventListener("input", () => { model.set("batch", view.batches[slider.value]); });
  slider.addEventListener("change", () => { says(); model.save_changes(); });
  button.addEventListener("click", () => {
    paused = !paused;
    button.textContent = paused ? "play" : "pause";
    button.setAttribute("aria-pressed", paused);
  });
  button.hidden = still.matches;
  each(".race-views button").forEach((one, i) => one.addEventListener("click", () => { model.set("view", i); model.save_changes(); }));
  model.on("change:batch", draw);
  model.on("change:view", turn);
  turn();
  frame = requestAnimationFrame(tick);
  return () => cancelAnimationFrame(frame);
}

export default { render };
