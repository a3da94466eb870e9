// To the floor: the bar of one token, and five levers. What each set of levers takes is the engine's ledger
// (course/site/widgets/floor.py); nothing is computed here but sums.

const CLASSES = ["host", "issue", "start", "run"];
const ms = (us) => `${Number((us / 1000).toPrecision(2))} ms`;

function render({ model, el }) {
  const us = model.get("us"), parts = model.get("parts"), engines = model.get("engines"), [, many] = model.get("tokens");
  const levers = [["graph", "one graph", 0, 1], ["early", "early starts", 0, 1], ["many", `${many} tokens a replay`, 1, many], ["bits", "4 bits a weight", 16, 4]];
  el.classList.add("floor");
  el.innerHTML = `<div class="choices" role="group" aria-label="kernels">${engines.map((name) => `<button type="button" class="engine">${name}</button>`).join("")}</div>
    <div class="choices" role="group" aria-label="levers">${levers.map(([name, word]) => `<button type="button" data-lever="${name}">${word}</button>`).join("")}</div>
    <div class="bars" aria-hidden="true"></div>
    <p class="ladder-key">${parts.map((part, i) => `<span class="race-key ${CLASSES[i]}">${part}</span>`).join("")}</p>
    <p class="says" role="status" aria-live="polite"></p>`;
  const find = (name) => el.querySelector(name), all = (name) => [...el.querySelectorAll(name)];
  const go = (name, value) => { model.set(name, value); model.save_changes(); };
  const sum = (numbers) => numbers.reduce((total, one) => total + one, 0);
  const first = us["0 0 0 1 16"];
  const bar = (name, numbers, longest, floor) => `<div class="token"><span>${name}</span><b>${ms(sum(numbers))}</b><div>${numbers.map((one, i) =>
    `<i class="${CLASSES[i]}" style="width:${(100 * one) / longest}%"></i>`).join("")}<u style="left:${(100 * floor) / longest}%"></u></div></div>`;

  function draw() {
    const graph = model.get("graph"), state = ["engine", "graph", "early", "many", "bits"].map((name) => model.get(name));
    const now = us[state.join(" ")], total = sum(now), floor = model.get("floor_us")[model.get("bits")];
    all(".engine").forEach((button, i) => button.setAttribute("aria-pressed", i === model.get("engine")));
    for (const [name, , off] of levers) {
      const button = find(`[data-lever=${name}]`);
      button.setAttribute("aria-pressed", model.get(name) !== off);
      button.disabled = !graph && (name === "early" || name === "many");
    }
    find(".bars").innerHTML = bar("at the beginning", first, sum(first), floor) + bar("with your levers", now, sum(first), floor) + bar("the same, enlarged", now, total, floor);
    el.dataset.us = total;
    const told = parts.map((part, i) => `${part} ${ms(now[i])}`).join(", ");
    find(".says").textContent = `${ms(total)} a token, ${(sum(first) / total).toFixed(1)} times as fast as at the beginning: ${told}. ` +
      `Its bytes at the speed of a copy, the floor, take ${ms(floor)}.`;
  }
  all(".engine").forEach((button, i) => button.addEventListener("click", () => go("engine", i)));
  for (const [name, , off, on] of levers) {
    find(`[data-lever=${name}]`).addEventListener("click", () => {
      if (name === "graph" && model.get("graph")) { go("early", 0); go("many", 1); } // no graph, no replay
      go(name, model.get(name) === off ? on : off);
    });
  }
  for (const name of ["engine", "graph", "early", "many", "bits"]) model.on(`change:${name}`, draw);
  draw();
}

export default { render };
