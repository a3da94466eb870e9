// On every page: copy buttons, without the prompts of a shell, and ticks for what has been read.
"use strict";

function copies(button, text) {
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text());
    button.classList.add("copied");
    setTimeout(() => button.classList.remove("copied"), 1500);
  });
}

for (const block of document.querySelectorAll(".highlight-sh, .highlight-python, .highlight-ipython3")) {
  const button = document.createElement("button");
  button.className = "copy";
  button.type = "button";
  button.setAttribute("aria-label", "Copy this code");
  copies(button, () => block.querySelector("pre").textContent.replace(/^(\$|>>>|\.\.\.) /gm, "").trimEnd());
  block.append(button);
}
// A narrow screen breaks lines: each stands in a block of its own, and rows of a table, which are found by
// what is blank in all of them, break at the same column, so that what is below each other stays there (site.css).
const LETTER = 6.6, RULE = /^[\s─━═┄-]*[─━═┏┓┗┛┡┩┌┐└┘├┤┼╇╞╪][\s─━═┄┏┓┗┛┡┩┌┐└┘├┤┼╇╞╪┳┻┬┴-]*$/;
const WORD = /--[\w-]+(?: (?:<span[^>]*>[^<\s]{1,24}<\/span>|[^\s<-][^\s<]{0,24}))?/g;  // an option, and what it is given
const piece = (name, text) => Object.assign(document.createElement("span"), { className: name, textContent: text });

function blank(rows, at) {
  return rows.every((row) => at >= row.length || /[ │┃]/.test(row[at]));
}

// The columns before which rows break: after a blank that follows a comma or colon in all of them, or two blanks.
function breaks(rows, room) {
  const ends = [], last = Math.max(...rows.map((row) => row.length));
  const gap = (at) => blank(rows, at) && !blank(rows, at + 1);
  const places = [(at) => rows.every((row) => at > row.length || /[,:;]/.test(row[at - 1])), (at) => blank(rows, at - 1)];
  for (let from = 0; last - from > room - 2 * (from > 0); from = ends.at(-1)) {
    const most = from + room - 2 * (from > 0), least = from + 0.35 * room;
    const found = places.map((fits) => {
      let at = Math.floor(most);
      while (at > least && !(gap(at) && fits(at))) at--;
      return at;
    }).find((at) => at > least);
    if (!found) break;
    ends.push(found + 1);
  }
  return ends;
}

function inLines(pre) {
  const lines = pre.textContent.replace(/\n$/, "").split("\n"), plain = !pre.closest(".highlight-sh");
  const room = Math.floor((pre.clientWidth - 12) / LETTER), out = [];
  for (let i = 0; plain && i < lines.length; ) {
    const table = [], last = () => table.filter((row) => !RULE.test(row));
    let cuts = [];
    for (let j = i; j < lines.length && lines[j].trim(); j++) {
      const wider = [...last(), lines[j]].filter((row) => !RULE.test(row)), found = wider.length ? breaks(wider, room) : [];
      if (wider.some((row) => row.length > room) && !found.length) break;
      table.push(lines[j]);
      cuts = found;
    }
    const spaced = last().filter((row) => /\S {2,}\S|[│┃]/.test(row)).length;
    const columns = last().length > 1 && 2 * spaced >= last().length && cuts.length;
    for (const row of columns ? table : [lines[i]]) {
      const line = piece("line", ""), cut = RULE.test(row) ? [] : [...cuts, row.length];
      if (RULE.test(row)) line.classList.add("rule");
      let from = 0;
      for (const to of columns ? cut : []) {
        const text = row.slice(from, to), indent = from && columnsIndent(last(), from, to);
        if (text.trim()) line.append(piece("pad", text.slice(0, indent)), piece(from ? "part on" : "part", text.slice(indent).trimEnd()), piece("pad", /\s*$/.exec(text)[0]));
        else line.append(piece("pad", text));
        from = Math.max(from, Math.min(to, row.length));
      }
      if (!line.childNodes.length) {
        const lead = row.length > room ? /^ {17,}/.exec(row)?.[0] ?? "" : "";
        line.style.setProperty("--hang", `${2 + (lead ? 0 : /^ */.exec(row)[0].length)}ch`);
        line.append(piece("pad", lead), row.slice(lead.length));
      }
      line.append(piece("pad", "\n"));
      out.push(line);
    }
    i += columns ? table.length : 1;
  }
  if (plain) pre.replaceChildren(...out);
  else pre.innerHTML = pre.innerHTML.replace(/\n$/, "").split("\n")
    .map((line) => `<span class="line">${line.replace(WORD, '<span class="word">$&</span>')}<span class="pad">\n</span></span>`).join("");
  pre.classList.add("lined");
}

function columnsIndent(rows, from, to) {  // blanks before the next part, in every row
  let at = from;
  while (at < to && rows.every((row) => at >= row.length || row[at] === " ")) at++;
  return at - from;
}

const narrow = matchMedia("(max-width: 40rem)");
function breakLines() {
  if (narrow.matches) for (const pre of document.querySelectorAll(":is(.highlight-sh, .highlight-text, .highlight-none, .output) pre:not(.lined)")) inLines(pre);
}
narrow.addEventListener("change", breakLines);
breakLines();
// A table of calls is a list there.
for (const table of document.querySelectorAll("article table.docutils")) {
  const rows = [...table.tBodies[0]?.rows ?? []];
  table.classList.toggle("calls", rows.length > 0 && rows.every((row) => row.cells.length === 2 && row.cells[0].querySelector("code")));
}
for (const button of document.querySelectorAll("[data-copy]")) copies(button, () => button.dataset.copy);

// A wide figure is enlarged, and then scrolls in its place.
for (const image of document.querySelectorAll("article img, figure.drawn svg")) {
  image.addEventListener("click", () => image.classList.toggle("large"));
}

// A chapter is read when its end has been on the screen. It is kept on this machine only.
const read = new Set(JSON.parse(localStorage.getItem("read") ?? "[]"));
const here = location.pathname.match(/course\/\d\d-[\w-]+(?=\.html)/)?.[0];
const end = document.querySelector("footer");
if (here && end) {
  new IntersectionObserver(([seen]) => {
    if (seen.isIntersecting) localStorage.setItem("read", JSON.stringify([...read.add(here)]));
  }).observe(end);
}
for (const tile of document.querySelectorAll("[data-page]")) {
  if (read.has(tile.dataset.page)) tile.classList.add("read");
}
for (const link of document.querySelectorAll(".sidebar-tree a")) {
  if (read.has(link.href.match(/course\/\d\d-[\w-]+(?=\.html)/)?.[0])) link.classList.add("read");
}
