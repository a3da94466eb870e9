// Capture and replay: a graph reads addresses. Four stories, run on the simulated device
// (course/site/widgets/capture.py), line by line; nothing is computed here.

const list = (numbers) => `[${numbers.map((n) => (n === null ? "?" : n)).join(" ")}]`;

function memory(cells) {
  // Names at the left, the memory in the middle, what the line read or wrote at the right.
  const tall = 52, rows = cells.map((cell, i) => {
    const y = i * tall + 8, mark = [cell.reads && "read", cell.writes && "written"].filter(Boolean).join(", ");
    const arrow = cell.names.length ? `<path d="M86 ${y + 18}h32m-7-5l7 5-7 5" class="arrow"/>` : "";
    return `<text x="78" y="${y + 23}" text-anchor="end" class="code name">${cell.names.join(", ")}</text>${arrow}
      <rect x="122" y="${y}" width="204" height="36" rx="4" class="cell${mark ? " touched" : ""}"/>
      <text x="132" y="${y + 15}" class="code small">${cell.address}</text>
      <text x="132" y="${y + 30}" class="code">${list(cell.holds)}</text>
      <text x="330" y="${y + 23}" class="mark">${mark ? `← ${mark}` : ""}</text>`;
  });
  return `<svg viewBox="0 0 400 ${3 * tall + 4}" aria-hidden="true">${rows.join("")}</svg>`;
}

function render({ model, el }) {
  const stories = model.get("stories");
  el.classList.add("capture");
  el.innerHTML = `<div class="choices" role="group" aria-label="what happens after the capture">
      ${stories.map((story) => `<button type="button">${story.title}</button>`).join("")}</div>
    <div class="halves"><ol class="lines"></ol><div class="memory"></div></div>
    <p class="node"></p>
    <p><button type="button" class="back">← back</button> <button type="button" class="next">next line →</button></p>
    <p class="says" role="status" aria-live="polite"></p>`;
  const find = (name) => el.querySelector(name), choices = [...el.querySelectorAll(".choices button")];

  function draw() {
    const story = stories[model.get("story")], at = model.get("line"), last = story.lines.length - 1;
    choices.forEach((choice, i) => choice.setAttribute("aria-pressed", i === model.get("story")));
    find(".lines").innerHTML = story.lines.map((line, i) =>
      `<li class="${i === at ? "now" : i < at ? "done" : ""}"${i === at ? ' aria-current="step"' : ""}><code>${line}</code></li>`).join("");
    find(".memory").innerHTML = memory(story.frames[at]);
    find(".node").textContent = at > 0 ? `In the graph: ${story.node}.` : "Nothing is recorded yet.";
    find(".back").disabled = at === 0;
    find(".next").disabled = at === last;
    const good = String(story.wanted) === String(story.found);
    const cells = story.frames[at].map((cell) => `${cell.address} holds ${list(cell.holds)}` +
      (cell.names.length ? ` and is called ${cell.names.join(" and ")}` : ""));
    find(".says").className = `says ${at < last ? "" : good ? "good" : "wrong"}`;
    find(".says").textContent = at < last ? `After line ${at + 1}: ${cells.join("; ")}.`
      : `${good ? "✓" : "✗"} ${story.of} is ${list(story.found)}` +
        `${good ? ", as you wanted" : `, and you wanted ${list(story.wanted)}`}. ${story.told}`;
  }
  const go = (name, value) => { model.set(name, value); model.save_changes(); };
  choices.forEach((choice, i) => choice.addEventListener("click", () => {
    go("line", Math.min(model.get("line"), 2));
    go("story", i);
  }));
  find(".back").addEventListener("click", () => go("line", model.get("line") - 1));
  find(".next").addEventListener("click", () => go("line", model.get("line") + 1));
  for (const name of ["story", "line"]) model.on(`change:${name}`, draw);
  draw();
}

export default { render };
