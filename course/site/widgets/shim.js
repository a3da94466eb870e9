// After a widget's own lines, in the same module: give each of its places on this page a model.
for (const el of document.querySelectorAll(`[data-widget="${WIDGET}"]`)) {
  const state = JSON.parse(document.getElementById(`data-${WIDGET}`)?.textContent ?? "{}");
  Object.assign(state, JSON.parse(el.dataset.state || "{}"));
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
    if (typeof state[name] === "number" && Number(value) > 0) state[name] = Number(value);
  }
  const changed = {};
  const model = {
    get: (name) => state[name],
    set(name, value) { state[name] = value; (changed[`change:${name}`] ?? []).forEach((tell) => tell()); },
    on: (event, tell) => (changed[event] ??= []).push(tell),
    save_changes() {}, // the page keeps nothing
  };
  render({ model, el });
  el.model = model;
}
