// The page table: which block of the cache belongs to whom, moment by moment. The engine's own pools
// have handed the blocks out (course/site/widgets/pages.py); nothing is computed here.

const ROW = 7, BOX = 50; // blocks in a row of the picture, and pixels from one to the next

function picture(moment, blocks, size) {
  // Each block with its number, the names in whose tables it stands, and its slots that hold a token.
  let out = "";
  for (let block = 0; block < blocks; block++) {
    const x = (block % ROW) * BOX + 4, y = Math.floor(block / ROW) * 66 + 4;
    const owners = moment.tables.filter((row) => row.table.includes(block));
    const held = Math.max(0, ...owners.map((row) => row.tokens - size * row.table.indexOf(block)));
    const name = block === 0 ? "null" : owners.map((row) => row.who[0]).join("");
    const slots = Array.from({ length: size }, (_, i) =>
      `<rect x="${x + 4 + i * 9.6}" y="${y + 40}" width="7.6" height="9" class="${i < held ? "full" : "free"}"/>`);
    const kind = owners.length > 1 ? "many" : owners.length ? `one ${owners[0].who}` : "";
    out += `<g class="block ${kind}"><rect x="${x}" y="${y}" width="44" height="54" rx="5"/>
      <text x="${x + 22}" y="${y + 16}" text-anchor="middle" class="small">${block}</text>
      <text x="${x + 22}" y="${y + 33}" text-anchor="middle">${name}</text>${block ? slots.join("") : ""}</g>`;
  }
  return `<svg viewBox="0 0 ${ROW * BOX + 2} ${Math.ceil(blocks / ROW) * 66}" aria-hidden="true">${out}</svg>`;
}

function render({ model, el }) {
  const ways = model.get("ways"), size = model.get("size");
  el.classList.add("pages");
  el.innerHTML = `<div class="choices" role="group" aria-label="how the cache is handed out">
      ${ways.map((way) => `<button type="button">${way.title}</button>`).join("")}</div>
    <div class="halves"><div class="blocks"></div>
      <table><thead><tr><th>request</th><th>tokens</th><th>block table</th></tr></thead><tbody></tbody></table></div>
    <p><button type="button" class="back">← back</button> <button type="button" class="next">next →</button></p>
    <p class="says" role="status" aria-live="polite"></p>`;
  const find = (name) => el.querySelector(name), choices = [...el.querySelectorAll(".choices button")];

  function draw() {
    const { moments } = ways[model.get("way")], at = model.get("moment"), now = moments[at];
    choices.forEach((choice, i) => choice.setAttribute("aria-pressed", i === model.get("way")));
    find(".blocks").innerHTML = picture(now, model.get("blocks"), size);
    find("tbody").innerHTML = now.tables.map((row) =>
      `<tr><th><i class="${row.who}"></i>${row.who}</th><td>${row.tokens}</td><td>${row.table.join(" ")}</td></tr>`).join("");
    find(".back").disabled = at === 0;
    find(".next").disabled = at === moments.length - 1;
    find(".says").textContent = `${at + 1} of ${moments.length}. ${now.told}. ` +
      `${now.needed} tokens stand in ${now.slots} slots.`;
  }
  const go = (name, value) => { model.set(name, value); model.save_changes(); };
  choices.forEach((choice, i) => choice.addEventListener("click", () => go("way", i)));
  find(".back").addEventListener("click", () => go("moment", model.get("moment") - 1));
  find(".next").addEventListener("click", () => go("moment", model.get("moment") + 1));
  for (const name of ["way", "moment"]) model.on(`change:${name}`, draw);
  draw();
}

export default { render };
