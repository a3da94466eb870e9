// A softmax in tiles: scores come a tile at a time, and three running totals are enough. `m` is the largest
// score so far, `l` the total of the weights, `a` that of the weighted values.

// The totals after each tile, with the factor by which those before it were corrected.
export function totals(scores, values, tile) {
  const found = [{ m: -Infinity, l: 0, a: 0, keep: 1, upto: 0 }];
  for (let at = 0; at < scores.length; at += tile) {
    const { m, l, a } = found.at(-1), part = scores.slice(at, at + tile), larger = Math.max(m, ...part);
    const keep = m === -Infinity ? 1 : Math.exp(m - larger), weights = part.map((score) => Math.exp(score - larger));
    found.push({
      m: larger, keep, upto: Math.min(at + tile, scores.length), l: l * keep + weights.reduce((sum, w) => sum + w, 0),
      a: a * keep + weights.reduce((sum, w, i) => sum + w * values[at + i], 0),
    });
  }
  return found;
}

function picture(scores, now, tile, wide) {
  const one = (wide - 8) / scores.length, y = (score) => 118 - score * 18;
  const bars = scores.map((score, i) => {
    const x = 4 + i * one, read = i < now.upto, fresh = read && i >= now.upto - (now.upto % tile || tile);
    const weight = read ? Math.exp(score - now.m) : 0;
    return `<rect x="${x + 1}" y="${Math.min(y(score), y(0))}" width="${one - 3}" height="${Math.max(1, Math.abs(y(score) - y(0)))}" class="${fresh ? "run" : read ? "gone" : "idle"}"/>
      <rect x="${x + 1}" y="${226 - 64 * weight}" width="${one - 3}" height="${64 * weight}" class="issue"/>`;
  });
  const top = Number.isFinite(now.m) ? `<path class="at" d="M4 ${y(now.m)}H${wide - 4}"/><text x="${wide - 6}" y="${y(now.m) - 4}" text-anchor="end">m</text>` : "";
  return `<svg viewBox="0 0 ${wide} 232" aria-hidden="true">${bars.join("")}${top}<text x="4" y="12">scores</text><text x="4" y="158">weights, measured from m</text></svg>`;
}

function render({ model, el }) {
  const scores = model.get("scores"), values = model.get("values");
  el.classList.add("softmax");
  el.innerHTML = `<div class="chart"></div><table><tbody></tbody></table>
    <p><label>tile <input type="range" min="1" max="${scores.length}" class="tile"> <output></output></label></p>
    <p><button type="button" class="back">← back</button> <button type="button" class="next">next tile →</button></p>
    <p class="says" role="status" aria-live="polite"></p>`;
  const find = (name) => el.querySelector(name);
  const go = (name, value) => { model.set(name, value); model.save_changes(); };

  function draw() {
    const tile = model.get("tile"), all = totals(scores, values, tile), at = Math.min(model.get("done"), all.length - 1), now = all[at];
    const whole = totals(scores, values, scores.length).at(-1), exact = whole.a / whole.l;
    find(".chart").innerHTML = picture(scores, now, tile, find(".chart").clientWidth);
    find(".tile").value = tile;
    find("output").textContent = tile;
    const cells = at ? [["largest score", "m", now.m.toFixed(1)], ["sum of weights", "l", now.l.toFixed(4)], ["sum of weighted values", "a", now.a.toFixed(3)], ["answer", "a / l", (now.a / now.l).toFixed(4)]] : [];
    find("tbody").innerHTML = (at ? cells : [["nothing read yet", "", ""]]).map(([name, sign, value]) => `<tr><td>${name}</td><td><code>${sign}</code></td><td>${value}</td></tr>`).join("");
    find(".back").disabled = at === 0;
    find(".next").disabled = at === all.length - 1;
    Object.assign(el.dataset, { m: now.m, l: now.l, a: now.a, keep: now.keep });
    find(".says").textContent = at === 0 ? `${scores.length} scores will come in tiles of ${tile}.`
      : `After ${now.upto} of ${scores.length} scores the answer is ${(now.a / now.l).toFixed(4)}.` +
        (now.keep < 1 ? ` A larger score came: what was there before was multiplied by ${now.keep.toFixed(4)}.` : "") +
        (at === all.length - 1 ? ` All at once it is ${exact.toFixed(4)}: the same.` : "");
    find(".says").className = `says ${at === all.length - 1 ? "good" : ""}`;
  }
  find(".tile").addEventListener("input", () => { go("done", 1); go("tile", Number(find(".tile").value)); });
  find(".back").addEventListener("click", () => go("done", model.get("done") - 1));
  find(".next").addEventListener("click", () => go("done", model.get("done") + 1));
  for (const name of ["tile", "done"]) model.on(`change:${name}`, draw);
  new ResizeObserver(draw).observe(find(".chart"));
  draw();
}

export default { render };
