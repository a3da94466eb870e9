// The roofline: where a decode step stands under the roof of a card, and what it keeps of its memory. Its
// operations, bytes and least time are the engine's (course/site/widgets/roofline.py).

const LEFT = 44, TALL = 300, X = [0.5, 2000], Y = [0.5, 2000]; // pixels; operations a byte; TFLOP/s
const digits = (value) => (value >= 100 ? Math.round(value).toLocaleString("en") : Number(value.toPrecision(2)).toString());

// One step: operations a byte, TFLOP/s at best, µs at best, and what the card holds.
function found(model) {
  const step = model.get("steps")[model.get("model")][model.get("bit")], card = model.get("cards")[model.get("card")];
  const at = model.get("batch"), us = step.us[model.get("card")][at], held = step.weights_gib + step.cache_gib[at];
  return {
    card, us, held, step, batch: model.get("batches")[at], fits: held <= card.gib, mb: step.mb[at], gflop: step.gflop[at],
    intensity: (1000 * step.gflop[at]) / step.mb[at], tflops: (1000 * step.gflop[at]) / us, ridge: (1000 * card.tflops) / card.gb_s,
  };
}

function chart(now, trail, wide) {
  const x = (value) => LEFT + ((wide - LEFT - 12) * Math.log(value / X[0])) / Math.log(X[1] / X[0]);
  const y = (value) => TALL - 36 - ((TALL - 52) * Math.log(value / Y[0])) / Math.log(Y[1] / Y[0]);
  const { card, ridge } = now, low = (Y[0] * 1000) / card.gb_s;
  const roof = `M${x(Math.max(X[0], low))} ${y(Math.max(Y[0], (X[0] * card.gb_s) / 1000))}L${x(ridge)} ${y(card.tflops)}H${x(X[1])}`;
  const ticks = [1, 10, 100, 1000].map((tick) =>
    `<text x="${x(tick)}" y="${TALL - 18}" text-anchor="middle">${tick}</text><text x="${LEFT - 6}" y="${y(tick) + 4}" text-anchor="end">${tick}</text>`);
  return `<svg viewBox="0 0 ${wide} ${TALL}" aria-hidden="true"><path d="${roof}" class="roof"/><path d="M${x(ridge)} ${y(card.tflops)}V${y(Y[0])}" class="ridge"/>
    ${trail.map(({ intensity, tflops }) => `<circle cx="${x(intensity)}" cy="${y(tflops)}" r="3" class="trail"/>`).join("")}
    <circle cx="${x(now.intensity)}" cy="${y(now.tflops)}" r="7" class="run"/>${ticks.join("")}
    <text x="${LEFT + 4}" y="14">TFLOP/s at best</text><text x="${wide - 12}" y="${TALL - 2}" text-anchor="end">operations for each byte</text></svg>`;
}

function render({ model, el }) {
  const groups = [["model", model.get("models")], ["bit", model.get("bits").map((bits) => `${bits} bits a weight`)], ["card", model.get("cards").map((card) => card.name.toUpperCase())]];
  el.classList.add("roofline");
  el.innerHTML = groups.map(([name, words]) => `<div class="choices" role="group" aria-label="${name}" data-of="${name}">
      ${words.map((word) => `<button type="button">${word}</button>`).join("")}</div>`).join("") +
    `<div class="chart"></div><p><label>batch <input type="range" min="0" max="${model.get("batches").length - 1}" class="batch"> <output></output></label></p>
    <div class="bar" aria-hidden="true"><i class="run"></i><i class="issue"></i></div>
    <p class="ladder-key"><span class="race-key run">weights</span><span class="race-key issue">keys and values</span><span class="race-key idle">room on the card</span></p>
    <p class="says" role="status" aria-live="polite"></p>`;
  const find = (name) => el.querySelector(name);
  const go = (name, value) => { model.set(name, value); model.save_changes(); };

  function draw() {
    const now = found(model), { step, card, batch } = now;
    for (const [name] of groups) {
      el.querySelectorAll(`[data-of=${name}] button`).forEach((button, i) => button.setAttribute("aria-pressed", i === model.get(name)));
    }
    find(".batch").value = model.get("batch");
    find(".batch").setAttribute("aria-valuetext", `batch ${batch}`);
    find("output").textContent = batch;
    const trail = step.mb.map((_, at) => found({ get: (name) => (name === "batch" ? at : model.get(name)) }));
    find(".chart").innerHTML = chart(now, trail, find(".chart").clientWidth);
    find(".bar .run").style.width = `${Math.min(100, (100 * step.weights_gib) / card.gib)}%`;
    find(".bar .issue").style.width = `${Math.max(0, Math.min(100 - (100 * step.weights_gib) / card.gib, (100 * (now.held - step.weights_gib)) / card.gib))}%`;
    Object.assign(el.dataset, { us: now.us, intensity: now.intensity, held: now.held });
    find(".says").textContent = `At batch ${batch} a step moves ${digits(now.mb / 1000)} GB and computes ${digits(now.gflop)} billion operations: ` +
      `${digits(now.intensity)} for each byte, and this card is balanced at ${digits(now.ridge)}. ` +
      `So ${now.intensity < now.ridge ? "bytes" : "operations"} set the pace, at least ${digits(now.us / 1000)} ms. ` +
      (now.fits ? `It keeps ${digits(now.held)} of ${card.gib} GiB.` : `It would keep ${digits(now.held)} GiB, and the card has ${card.gib}: it does not fit.`);
    find(".says").className = `says ${now.fits ? "" : "wrong"}`;
  }
  for (const [name] of groups) {
    el.querySelectorAll(`[data-of=${name}] button`).forEach((button, i) => button.addEventListener("click", () => go(name, i)));
    model.on(`change:${name}`, draw);
  }
  find(".batch").addEventListener("input", () => go("batch", Number(find(".batch").value)));
  model.on("change:batch", draw);
  new ResizeObserver(draw).observe(find(".chart"));
  draw();
}

export default { render };
