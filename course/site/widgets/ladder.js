// A ladder of capture sizes to build. How long a step takes is a table of the engine
// (course/site/widgets/ladder.py); which rung a batch runs at, and what that costs, is found here.

const percent = (share) => `${(100 * share).toFixed(1)}%`;

// The size that a batch is padded to; undefined above the top, where it runs without a graph.
const rungOf = (rungs, batch) => rungs.find((rung) => rung >= batch);

function cost(state, rungs) {
  // Of the whole load: the share of the rows that is padding, and of the time above a graph for each size.
  const { steps } = state.load;
  let rows = 0, padded = 0, us = 0, least = 0;
  steps.forEach((count, i) => {
    const batch = i + 1, rung = rungOf(rungs, batch);
    if (rung) { rows += count * rung; padded += count * (rung - batch); } else rows += count * batch;
    us += count * (rung ? state.graph_us[rung - 1][i] : state.eager_us[i]);
    least += count * state.graph_us[i][i];
  });
  return { padding: padded / rows, lost: us / least - 1 };
}

const LEFT = 34; // pixels

function chart(state, rungs, batch, wide) {
  const { top } = state, one = (wide - LEFT - 8) / top, x = (n) => LEFT + n * one, y = (n) => 236 - (n * 216) / top;
  const steps = state.load.steps, most = Math.max(...steps);
  let stairs = "", bars = "";
  for (let n = 1; n <= top; n++) {
    const rung = rungOf(rungs, n), tall = (40 * steps[n - 1]) / most;
    stairs += `<rect x="${x(n - 1)}" y="${y(rung ?? n)}" width="${one - 0.6}" height="${y(0) - y(rung ?? n)}" class="${rung ? "pad" : "none"}"/>
      <rect x="${x(n - 1)}" y="${y(n)}" width="${one - 0.6}" height="${y(0) - y(n)}" class="${rung ? "row" : "alone"}"/>`;
    bars += `<rect x="${x(n - 1)}" y="${292 - tall}" width="${one - 0.6}" height="${tall}" class="host"/>`;
  }
  const ticks = [1, 16, 32, 48, 64].map((n) => `<text x="${x(n - 0.5)}" y="250" text-anchor="middle">${n}</text>`);
  return `<svg viewBox="0 0 ${wide} 296" aria-hidden="true">${stairs}${bars}${ticks.join("")}
    <text x="30" y="${y(top) + 4}" text-anchor="end">${top}</text><text x="36" y="12">rows that run</text>
    <path class="at" d="M${x(batch - 0.5)} 16V296"/></svg>`;
}

function render({ model, el }) {
  el.classList.add("ladder");
  el.innerHTML = `<div class="choices" role="group" aria-label="the load">
      ${model.get("loads").map((load) => `<button type="button">${load.name}</button>`).join("")}</div>
    <div class="chart"></div>
    <p class="ladder-key"><span class="race-key row">rows of the batch</span><span class="race-key pad">padding</span>
      <span class="race-key alone">no graph</span><span class="race-key host">how often</span></p>
    <p><label>batch <input type="range" min="1" max="${model.get("top")}" class="batch"> <output></output></label>
      <button type="button" class="toggle"></button></p>
    <p><label>best ladder of <input type="number" min="1" max="8" value="3" class="best"> rungs</label>
      <button type="button" class="take">take it</button> <button type="button" class="own">vLLM's own</button>
      <button type="button" class="clear">none</button></p>
    <p class="total"></p><p class="says" role="status" aria-live="polite"></p>`;
  const find = (name) => el.querySelector(name), loads = [...el.querySelectorAll(".choices button")];
  const state = () => ({
    load: model.get("loads")[model.get("load")], graph_us: model.get("graph_us"),
    eager_us: model.get("eager_us"), top: model.get("top"),
  });

  function draw() {
    const now = state(), rungs = model.get("rungs"), batch = model.get("batch");
    loads.forEach((load, i) => load.setAttribute("aria-pressed", i === model.get("load")));
    find(".chart").innerHTML = chart(now, rungs, batch, find(".chart").clientWidth);
    find(".batch").value = batch;
    find("output").textContent = batch;
    find(".toggle").textContent = rungs.includes(batch) ? `remove rung ${batch}` : `add rung ${batch}`;
    const { padding, lost } = cost(now, rungs);
    find(".total").innerHTML = `<b>${rungs.length} ${rungs.length === 1 ? "rung" : "rungs"}</b> (${rungs.join(", ") || "none"}): ` +
      `${percent(padding)} of the rows are padding, and ${percent(lost)} more time than with a graph for each size.`;
    Object.assign(el.dataset, { padding, lost });
    const rung = rungOf(rungs, batch), exact = now.graph_us[batch - 1][batch - 1];
    const us = rung ? now.graph_us[rung - 1][batch - 1] : now.eager_us[batch - 1];
    el.dataset.us = us;
    find(".says").textContent = (rung
      ? `A batch of ${batch} runs at ${rung}: ${rung - batch} of ${rung} rows are padding`
      : `A batch of ${batch} is above the top rung and runs without a graph`) +
      `. The step takes ${(us / 1000).toFixed(2)} ms; in a graph of its own size ${(exact / 1000).toFixed(2)}.`;
  }
  const go = (name, value) => { model.set(name, value); model.save_changes(); };
  const best = () => Math.min(8, Math.max(1, Math.round(find(".best").value) || 1));
  loads.forEach((load, i) => load.addEventListener("click", () => go("load", i)));
  find(".batch").addEventListener("input", () => go("batch", Number(find(".batch").value)));
  find(".toggle").addEventListener("click", () => {
    const rungs = model.get("rungs"), batch = model.get("batch");
    go("rungs", rungs.includes(batch) ? rungs.filter((rung) => rung !== batch) : [...rungs, batch].sort((a, b) => a - b));
  });
  find(".take").addEventListener("click", () => go("rungs", state().load.best[best() - 1]));
  find(".own").addEventListener("click", () => go("rungs", model.get("own")));
  find(".clear").addEventListener("click", () => go("rungs", []));
  find(".chart").addEventListener("click", (event) => {
    const box = find(".chart").getBoundingClientRect(), top = model.get("top");
    const at = ((event.clientX - box.left - LEFT) * top) / (box.width - LEFT - 8);
    go("batch", Math.min(top, Math.max(1, Math.ceil(at))));
  });
  for (const name of ["rungs", "batch", "load"]) model.on(`change:${name}`, draw);
  new ResizeObserver(draw).observe(find(".chart"));
  draw();
}

export default { render };
