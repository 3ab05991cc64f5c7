// Elements that belong together, and links into folded parts.
// A key names a thing of the data: `L<file>-<line>` a source line, `g<frame>-<guard>`, `n<graph>-<node>`, `s<graph>-<step>`
// (a kernel or ATen call), `f<frame>` all guards of a frame.  `data-key` of an element has its keys.
// Hovering or focusing an element lights the elements of the keys that belong to its own, until another is lit.
const KINDS = {L: ["source line", "source lines"], n: ["node", "nodes"], s: ["kernel or ATen call", "kernels and ATen calls"],
  g: ["guard", "guards"]};
const TABLES = {g: "guards", s: "steps", n: "operators"};
const lineOf = where => lines()[where.split(" ")[0]];

const relations = once(() => data().then(all => {
  const found = {};  // key -> keys of nodes, steps, guards or lines
  const add = (key, other) => (found[key] ??= []).push(other);
  const tie = (key, other) => { add(key, other); add(other, key) };
  all.frames.forEach((frame, f) => frame.guards.forEach((guard, i) => {
    const line = lineOf(innermost(guard.stack));
    if (line) tie(line, `g${f}-${i}`);
    add(`f${f}`, `g${f}-${i}`);
  }));
  all.graphs.forEach((graph, g) => {
    const names = new Map(graph.nodes.map((node, i) => [node.name, `n${g}-${i}`]));
    graph.nodes.forEach((node, i) => { if (lineOf(node.place)) tie(lineOf(node.place), `n${g}-${i}`) });
    graph.steps.forEach((step, i) => {
      for (const name of new Set(step.operators)) if (names.has(name)) tie(`s${g}-${i}`, names.get(name));
    });
  });
  return found;
}));
// The keys that belong to one: of a line its nodes, their kernels and its guards; of the others in the same way.
function belonging(found, key) {
  const of = (keys, kind) => keys.flatMap(k => (found[k] ?? []).filter(other => other[0] == kind));
  const guards = key[0] == "f" ? of([key], "g") : key[0] == "g" ? [key] : [];
  let known = key[0] == "L" ? [key] : of(guards, "L"), nodes = [];
  if (key[0] == "n") nodes = [key];
  else if (key[0] == "s") nodes = of([key], "n");
  else if (key[0] != "f") nodes = of(known, "n");
  if (key[0] == "n" || key[0] == "s") known = of(nodes, "L");
  const steps = key[0] == "s" ? [] : of(nodes, "s");
  const others = key[0] == "f" || key[0] == "g" ? [] : of(known, "g");
  return new Set([key, ...guards, ...known, ...nodes, ...steps, ...others]);
}

let lit = new Set(), origin = null;
const isLit = element => element.dataset.key.split(" ").some(key => lit.has(key));
function mark(root = document) {
  for (const element of root.querySelectorAll("[data-key]")) element.classList.toggle("lit", isLit(element));
  for (const edge of root.querySelectorAll("[data-ends]"))
    edge.classList.toggle("lit", edge.dataset.ends.split(" ").some(key => origin !== null && origin.split(" ").includes(key)));
}
async function light(keys) {
  if (keys === origin) return;
  origin = keys;
  const found = keys ? await relations() : {};
  if (keys !== origin) return;  // another element meanwhile
  lit = new Set(keys ? keys.split(" ").flatMap(key => [...belonging(found, key)]) : []);
  mark();
  together();
}
// The panel with a link to the first thing of each kind.
function together() {
  const panel = document.getElementById("together");
  const kinds = Object.entries(KINDS).map(([letter, names]) => [[...lit].filter(key => key[0] == letter), names]);
  const links = kinds.filter(([keys]) => keys.length).map(([keys, [one, many]]) =>
    make("a", `${keys.length.toLocaleString("en")} ${keys.length == 1 ? one : many}`, {href: `#${keys[0]}`}));
  const close = make("button", "×", {type: "button", "aria-label": "Light nothing"});
  close.addEventListener("click", () => light(null));
  panel.replaceChildren(make("span", "Lit: "), ...links.flatMap(link => [link, " "]), close);
  panel.hidden = !links.length;
}
const keyed = event => event.target.closest?.("[data-key]")?.dataset.key;
for (const kind of ["pointerover", "focusin"])
  document.addEventListener(kind, event => { const keys = keyed(event); if (keys) light(keys) });
document.addEventListener("keydown", event => { if (event.key == "Escape" && origin) light(null) });

// Rows with keys: a table is one stop of the Tab key, and the arrows move between its rows.
function reachable(root) {
  for (const body of root.querySelectorAll("tbody")) {
    const rows = [...body.querySelectorAll(":scope > tr[data-key]")];
    rows.forEach((row, i) => row.tabIndex = i ? -1 : 0);
  }
}
document.addEventListener("keydown", event => {
  const by = {ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling"}[event.key];
  if (!by || event.target.tagName != "TR" || !event.target.dataset.key) return;
  let row = event.target[by];
  while (row && !row.dataset.key) row = row[by];
  event.preventDefault();
  if (!row) return;
  [event.target.tabIndex, row.tabIndex] = [-1, 0];
  row.focus();
});
reachable(document);

// A link to a thing in a folded part opens the part.
async function reveal(id) {
  let target = document.getElementById(id);
  const table = TABLES[id[0]], at = id.match(/^[gns](\d+)-\d+$/);
  if (!target && table && at) {
    const of = `[data-of="${at[1]}"]`, row = `tr[data-key="${id}"]`;
    const details = document.querySelector(`details[data-make=${table}]${of}, details[data-made=${table}]${of}`);
    if (details) {
      await fill(details);
      details.open = true;
      details.reveal?.(id);
      target = details.querySelector(`:scope > :not(.found) ${row}`);
    }
  }
  const folded = target ? [] : [...document.querySelectorAll("details[data-part]")];
  for (let i = 0; !target && i < folded.length; i++)
    if ((await parts())[folded[i].dataset.part].includes(`id="${id}"`)) {
      await fill(folded[i]);
      target = document.getElementById(id);
    }
  for (let at = target; at; at = at.parentElement) if (at.tagName == "DETAILS") at.open = true;
  target?.scrollIntoView({block: "center"});
  if (target?.matches("tr[data-key], li[id]")) {
    if (!target.hasAttribute("tabindex")) target.tabIndex = -1;
    target.focus({preventScroll: true});
  }
  return target;
}
const hash = () => decodeURIComponent(location.hash.slice(1));
addEventListener("hashchange", () => reveal(hash()));
// A link that is followed twice changes no hash.
document.addEventListener("click", event => {
  const link = event.target.closest?.("a[href^='#']");
  if (link && link.hash == location.hash) reveal(hash());
});
if (hash()) reveal(hash());
