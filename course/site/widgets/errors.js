// Your predictions beside ours: how many times too much or too little each number was. Yours are on this
// machine (predict.js); ours are `ours`, the ratios of course/site/widgets/errors.py.

const SPAN = 100, LEFT = 22; // times, to either side; pixels
const middle = (numbers) => [...numbers].sort((a, b) => a - b)[Math.floor(numbers.length / 2)];
const off = (ratio) => Math.max(ratio, 1 / ratio);

function dots(ratios, x, y, size, name) {
  // Those of one place stand on each other, at most 90 pixels high.
  const seen = {};
  const places = ratios.map((ratio) => {
    const at = Math.round(x(ratio) / (2.4 * size)) * 2.4 * size;
    return [at, (seen[at] = (seen[at] ?? -1) + 1)];
  });
  const step = Math.min(2.4 * size, 90 / Math.max(...Object.values(seen), 1));
  return places.map(([at, up]) => `<circle cx="${at}" cy="${y - step * up}" r="${size}" class="${name}"/>`).join("");
}

function render({ model, el }) {
  const ours = model.get("ours");
  let all = {};
  try { all = JSON.parse(localStorage.getItem("predictions") ?? "{}"); } catch { /* nobody keeps anything here */ }
  const mine = Object.entries(all).flatMap(([page, of]) => Object.values(of).map((one) => ({ page, ...one })));
  const numbers = mine.filter(({ is, guess }) => typeof is === "number" && typeof guess === "number");
  const yours = numbers.map(({ guess, is }) => guess / is);
  el.classList.add("errors");
  const wide = Math.min(720, el.clientWidth - 40), middleX = wide / 2;
  const x = (ratio) => middleX + ((middleX - LEFT) * Math.log(Math.min(SPAN, Math.max(1 / SPAN, ratio)))) / Math.log(SPAN);
  const ticks = [0.01, 0.1, 0.5, 1, 2, 10, 100].map((tick) =>
    `<path d="M${x(tick)} 14V244" class="tick${tick === 1 ? " one" : ""}"/><text x="${x(tick)}" y="262" text-anchor="middle">${tick === 1 ? "right" : tick < 1 ? `1/${1 / tick}` : `×${tick}`}</text>`);
  el.innerHTML = `<svg viewBox="0 0 ${wide} 270" aria-hidden="true">${ticks.join("")}
      <text x="0" y="12">yours</text>${dots(yours, x, 106, 4, "run")}<text x="0" y="132">ours</text>${dots(ours, x, 240, 2, "issue")}</svg>
    <p class="says" role="status"></p><table><thead><tr><th>chapter</th><th>you</th><th>it says</th></tr></thead><tbody></tbody></table>
    <p><button type="button" class="forget">forget mine</button></p>`;
  const good = mine.filter((one) => one.good).length;
  el.querySelector(".says").textContent = (mine.length
    ? `You have answered ${mine.length}, ${good} of them right.` + (yours.length ? ` Your numbers are ${middle(yours.map(off)).toFixed(1)} times off in the middle.` : "")
    : "You have predicted nothing yet: each chapter begins with two or three questions.") +
    ` Our ${ours.length} steps, each predicted without its source, are ${middle(ours.map(off)).toFixed(2)} times off in the middle.`;
  const body = el.querySelector("tbody");
  for (const { page, guess, is, unit } of numbers) {
    const row = body.insertRow(), link = Object.assign(document.createElement("a"), { href: `${page}.html`, textContent: Number(page.slice(7, 9)) });
    row.insertCell().append(link);
    row.insertCell().textContent = guess.toLocaleString("en");
    row.insertCell().textContent = `${is.toLocaleString("en")} ${unit ?? ""}`;
  }
  el.querySelector("table").hidden = !numbers.length;
  el.querySelector(".forget").hidden = !mine.length;
  el.querySelector(".forget").addEventListener("click", () => { localStorage.removeItem("predictions"); render({ model, el }); });
}

export default { render };
