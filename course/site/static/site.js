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
// On a phone what stands in columns scrolls, and a table of calls is a list (site.css).
for (const pre of document.querySelectorAll(".highlight-text pre, .highlight-none pre, .output pre")) {
  pre.classList.toggle("columns", /\S {2,}\S/.test(pre.textContent));
}
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
