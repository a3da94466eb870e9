// Cutting a step: a layer as boxes; those that are kept live cut it into graphs. Then a mode, and which
// graph runs a batch, as the engine's dispatcher found it (course/site/widgets/cutter.py).

const count = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

// Neighbours of one kind are a piece: [live?, ops]. The rule is that of mini_engine/dispatch/pieces.py.
export function pieces(ops, cuts) {
  const found = [];
  for (const op of ops) {
    const live = cuts.includes(op);
    if (found.at(-1)?.[0] !== live) found.push([live, []]);
    found.at(-1)[1].push(op);
  }
  return found;
}

function render({ model, el }) {
  const layer = model.get("layer"), layers = model.get("layers"), before = model.get("before"), live = model.get("live");
  const step = [...before, ...Array.from({ length: layers }, () => layer).flat()];
  const names = [...new Set(layer)], modes = model.get("modes"), batches = model.get("batches");
  el.classList.add("cutter");
  const buttons = (name, words) => `<div class="choices" role="group" aria-label="${name}" data-of="${name}">${words.map((word) => `<button type="button">${word}</button>`).join("")}</div>`;
  el.innerHTML = `<p>One layer. Press a kernel to keep it out of the graphs:</p>
    <div class="boxes" role="group" aria-label="kernels of a layer">${layer.map((op) => `<button type="button" data-op="${op}">${op.replaceAll("_", " ")}</button>`).join("")}</div>
    <p class="cut" role="status" aria-live="polite"></p>
    <p>A batch, and a mode of the server:</p>${buttons("batch", batches)}${buttons("mode", modes)}
    <div class="tracks" aria-hidden="true"></div><p class="says" role="status" aria-live="polite"></p>`;
  const find = (name) => el.querySelector(name), all = (name) => [...el.querySelectorAll(name)];
  const go = (name, value) => { model.set(name, value); model.save_changes(); };

  function draw() {
    const cuts = model.get("cuts"), found = pieces(step, cuts), graphs = found.filter(([out]) => !out).length;
    const alone = step.filter((op) => cuts.includes(op)).length, launches = graphs + alone + live.length + 1;
    all(".boxes button").forEach((box, i) => {
      const out = cuts.includes(box.dataset.op), last = i > 0 && cuts.includes(layer[i - 1]) === out;
      box.setAttribute("aria-pressed", out);
      box.className = `${out ? "live" : "in"} ${last ? "joined" : ""}`;
    });
    Object.assign(el.dataset, { graphs, alone, launches });
    find(".cut").textContent = `${count(graphs, "graph")} and ${count(alone, "live kernel")} in ${layers} layers; with ${live.length} of the head ` +
      `and a copy, ${count(launches, "launch").replace("launchs", "launches")} a step instead of ${step.length + live.length + 1}.`;
    const mode = modes[model.get("mode")], [ran, rows] = model.get("runs")[mode][model.get("batch")];
    for (const [name, at] of [["mode", model.get("mode")], ["batch", model.get("batch")]]) {
      all(`[data-of=${name}] button`).forEach((button, i) => button.setAttribute("aria-pressed", i === at));
    }
    find(".tracks").innerHTML = ["FULL", "PIECEWISE", "NONE"].map((track) => `<span class="${track === ran ? "taken" : ""}">${{ FULL: "one graph", PIECEWISE: "pieces", NONE: "no graph" }[track]}</span>`).join("");
    const how = { FULL: `runs as one full graph of ${count(rows, "row")}`, PIECEWISE: `runs in pieces of ${count(rows, "row")}: ${count(launches, "launch").replace("launchs", "launches")}`, NONE: `finds no graph and runs its ${count(rows, "row")} kernel by kernel` }[ran];
    find(".says").textContent = `In mode ${mode}, ${batches[model.get("batch")]} ${how}.`;
    Object.assign(el.dataset, { ran, rows });
  }
  all(".boxes button").forEach((box) => box.addEventListener("click", () => {
    const cuts = model.get("cuts"), { op } = box.dataset;
    go("cuts", cuts.includes(op) ? cuts.filter((cut) => cut !== op) : names.filter((name) => name === op || cuts.includes(name)));
  }));
  for (const name of ["mode", "batch"]) all(`[data-of=${name}] button`).forEach((button, i) => button.addEventListener("click", () => go(name, i)));
  for (const name of ["cuts", "mode", "batch"]) model.on(`change:${name}`, draw);
  draw();
}

export default { render };
