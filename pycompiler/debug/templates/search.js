// The search box: source lines, causes, guards, kernels, nodes, recompiles, frames and graphs, from the page's data.
// A result is a link; it opens the folded part of its thing.
const SHOWN = 10, MORE = 200;  // results of a kind at once; after "more"
const RECOMPILES = 500;  // as in `page.py`: the page has no rows of later ones
const FOUND = ["lines", "causes", "guards", "kernels", "nodes", "recompiles", "frames", "graphs"];

const searched = once(() => data().then(all => {
  const rows = [], seen = new Set();
  const add = (kind, id, text, more = "") => rows.push({kind, id, text, more, all: `${text} ${more}`.toLowerCase()});
  const base = where => where.slice(where.lastIndexOf("/") + 1);
  for (const frame of all.frames) for (const one of [frame, ...frame.inlined]) for (const [number, text] of one.source) {
    const id = lines()[`${one.file}:${number}`];
    if (id && text.trim() && !seen.has(id)) add("lines", id, text.trim(), `${base(one.file)}:${number}`);
    seen.add(id);
  }
  all.advice.forEach((row, k) => add("causes", `A${k}`, row.what, [row.where, row.do, ...row.follows].join(" ")));
  all.frames.forEach((frame, f) => {
    add("frames", `F${frame.run}-${frame.number}`, frame.function, `${base(frame.file)}:${frame.line}`);
    frame.guards.forEach((guard, i) => add("guards", `g${f}-${i}`, guard.text, base(innermost(guard.stack))));
  });
  all.graphs.forEach((graph, g) => {
    add("graphs", `G${graph.run}-${graph.number}`, graphName(graph));
    graph.steps.forEach((step, i) => add("kernels", `s${g}-${i}`, step.name, `${graphName(graph)}: ${step.operators.join(", ")}`));
    graph.nodes.forEach((node, i) => add("nodes", `n${g}-${i}`, node.name, `${node.operator} ${base(node.place)}`));
  });
  all.recompiles.slice(0, RECOMPILES).forEach((row, k) => add("recompiles", `R${k}`, row.function, row.reasons.join(" ")));
  return rows;
}));
function found(rows, wanted, kind) {
  const words = wanted.toLowerCase().split(/\s+/).filter(word => word);
  return words.length ? rows.filter(row => (!kind || row.kind == kind) && words.every(word => row.all.includes(word))) : [];
}
function results(kind, rows, most) {
  const items = rows.slice(0, most).map(row =>
    make("li", [make("a", code(short(row.text)), {href: `#${row.id}`}), " ", make("span", short(row.more), {class: "dim"})]));
  const made = make("section", [make("p", counted(rows.length, kind.slice(0, -1))), make("ul", items)], {"aria-label": kind});
  if (rows.length > most && most < MORE) {
    const more = make("button", `${Math.min(rows.length, MORE) - most} more`, {type: "button"});
    more.addEventListener("click", () => made.replaceWith(results(kind, rows, MORE)));
    made.append(more);
  }
  return made;
}
const box = document.getElementById("search"), wanted = document.getElementById("wanted");
const chosen = document.getElementById("kind"), count = document.getElementById("count");
chosen.append(make("option", "everything", {value: ""}), ...FOUND.map(kind => make("option", kind, {value: kind})));
box.hidden = false;
async function search() {
  const asked = wanted.value, rows = found(await searched(), asked, chosen.value);
  if (asked !== wanted.value) return;
  const kinds = FOUND.map(kind => [kind, rows.filter(row => row.kind == kind)]).filter(([, own]) => own.length);
  document.getElementById("results").replaceChildren(...kinds.map(([kind, own]) => results(kind, own, SHOWN)));
  count.textContent = asked.trim() ? counted(rows.length, "result") : "";
}
wanted.addEventListener("input", search);
chosen.addEventListener("input", search);
wanted.addEventListener("keydown", event => {
  if (event.key == "Escape") { wanted.value = ""; search() }
  if (event.key == "ArrowDown") { document.querySelector("#results a")?.focus(); event.preventDefault() }
});
document.addEventListener("keydown", event => {
  if (event.key != "/" || event.ctrlKey || event.metaKey || event.altKey || /INPUT|SELECT/.test(event.target.tagName)) return;
  wanted.focus();
  wanted.select();
  event.preventDefault();
});
