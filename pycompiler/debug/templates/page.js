// The script of a report's page.  The page has its data once, compressed; folded tables and texts are made of the data
// when the reader opens them.  Strings of the data become text nodes, never markup.
"use strict";
const OPEN = 40, PART = 500;  // rows that are visible at once; rows of each further part

function inflate(id) {
  const text = document.getElementById(id).textContent.trim();
  const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}
const once = make => { let made; return () => made ??= make() };
// Inverse of `page_data.encode`.
function decode(value, shared) {
  if (Array.isArray(value)) return value.map(item => decode(item, shared));
  if (value === null || typeof value != "object") return value;
  if ("$" in value) return shared[value.$];
  if ("$columns" in value) {
    const columns = Object.entries(value.$columns).map(([key, items]) => [key, decode(items, shared)]);
    return columns[0][1].map((_, i) => Object.fromEntries(columns.map(([key, items]) => [key, items[i]])));
  }
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, decode(item, shared)]));
}
const data = once(() => inflate("document").then(({shared, data}) => {
  const known = [];
  for (const item of shared) known.push(decode(item, known));
  return decode(data, known);
}));
const parts = once(() => inflate("parts"));

function make(tag, content, attributes) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...[content].flat().filter(item => item !== null && item !== undefined));
  return made;
}
const code = text => make("code", text);
function nanoseconds(ns) {
  if (ns === null || ns === undefined) return "–";
  for (const [unit, size] of [["ns", 1], ["µs", 1e3], ["ms", 1e6]])
    if (ns < 1000 * size) return `${Number((ns / size).toPrecision(3))} ${unit}`;
  return `${Number((ns / 1e9).toPrecision(3))} s`;
}
function size(n) {
  if (n === null || n === undefined) return "–";
  for (const [unit, one] of [["B", 1], ["KiB", 2 ** 10], ["MiB", 2 ** 20]])
    if (n < 1024 * one) return `${Number((n / one).toPrecision(3))} ${unit}`;
  return `${Number((n / 2 ** 30).toPrecision(3))} GiB`;
}
const short = text => text.length <= 160 ? text : text.slice(0, 156) + " ...";
const counted = (n, what) => `${n.toLocaleString("en")} ${what}${n == 1 ? "" : "s"}`;
function bar(share) {
  if (!(share > 0)) return "";
  const made = make("span", "", {class: "bar", "aria-hidden": "true"});
  made.style.width = `${Math.min(share, 1) * 8}rem`;
  return made;
}
function place(where) {
  if (!where) return "";
  const at = where.lastIndexOf("/") + 1, [file, line] = [where.slice(0, where.indexOf(":")), parseInt(where.split(":")[1])];
  const shown = where.slice(at).replace(/resume_in_(.*)_at_\d+$/, "$1"), id = lines()[`${file}:${line}`];
  const text = make("code", shown, {title: where});
  return id ? make("a", text, {href: `#${id}`}) : text;
}
const lines = once(() => JSON.parse(document.getElementById("lines").textContent));
const stacked = stack => {
  const shown = stack.filter(f => lines()[`${f.file}:${f.line}`]), f = (shown.length ? shown : stack).at(-1);
  return f ? place(`${f.file}:${f.line}`) : "";
};

// Tables: heads with a leading "#" are columns of numbers; rows beyond OPEN are made when their part is opened.
function table(caption, heads, count, row) {
  const number = heads.map(head => head[0] == "#");
  const filled = (first, last) => {
    const head = make("tr", heads.map((h, k) => make("th", h.replace("#", ""), {scope: "col", class: number[k] ? "n" : ""})));
    const body = make("tbody", []);
    for (let i = first; i < last; i++)
      body.append(make("tr", row(i).map((cell, k) => make("td", cell, {class: number[k] ? "n" : "wrap"}))));
    return make("div", make("table", [make("caption", caption), make("thead", head), body]), {class: "wide"});
  };
  const made = [filled(0, Math.min(OPEN, count))];
  for (let k = OPEN; k < count; k += PART) {
    const last = Math.min(k + PART, count), [from, to, all] = [k + 1, last, count].map(n => n.toLocaleString("en"));
    const part = make("details", make("summary", `${from} to ${to} of ${all}`), {class: "part"});
    part.addEventListener("toggle", () => part.append(filled(k, last)), {once: true});
    made.push(part);
  }
  if (count > OPEN) {
    const label = make("label", ["filter: ", make("input", null, {type: "search", class: "filter"})]);
    label.lastChild.addEventListener("input", event => {
      const wanted = event.target.value.toLowerCase(), found = [];
      for (let i = 0; wanted && i < count; i++) if (make("tr", row(i)).textContent.toLowerCase().includes(wanted)) found.push(i);
      label.parentElement.querySelectorAll(":scope > .found").forEach(old => old.remove());
      if (!wanted) return;
      const shown = make("div", table(`${counted(found.length, "row")} with “${event.target.value}”`, heads,
        Math.min(found.length, OPEN), k => row(found[k])), {class: "found"});
      label.after(shown);
    });
    made.unshift(label);
  }
  return made;
}
const graphOf = (all, at) => all.graphs[at], least = graph => graph.calls ? graph.calls.least : [];
const MAKERS = {
  guards(all, at) {
    const frame = all.frames[at], each = frame.entry ? frame.entry.each : {};
    const order = frame.guards.map((_, i) => i).sort((a, b) => (each[b] ?? 0) - (each[a] ?? 0) || a - b);
    const top = Math.max(0, ...Object.values(each));
    return table("Guards, costliest first", ["#cost", "", "guard", "made at"], order.length, k => {
      const guard = frame.guards[order[k]], ns = each[order[k]];
      return [nanoseconds(ns), bar((ns ?? 0) / top), code(short(guard.text)), stacked(guard.stack)];
    });
  },
  steps(all, at) {
    const graph = graphOf(all, at), times = least(graph).length == graph.steps.length ? least(graph) : [];
    const places = Object.fromEntries(graph.nodes.map(n => [n.name, n.place])), top = times.reduce((a, b) => Math.max(a, b), 0);
    return table("Steps in order: least time of a call, bytes read and written",
      ["step", "#time", "", "operators fused into it", "#reads", "#writes", "lines"], graph.steps.length, i => {
        const step = graph.steps[i], used = [...new Set(step.operators.map(o => places[o]).filter(p => p))].slice(0, 3);
        const names = step.operators.slice(0, OPEN).join(", ") + (step.operators.length > OPEN ? ", …" : "");
        return [code(step.name), nanoseconds(times[i]), bar((times[i] ?? 0) / top), code(names), size(step.reads),
          size(step.writes), used.flatMap(where => [place(where), " "])];
      });
  },
  unfused(all, at) {
    const pairs = graphOf(all, at).unfused;
    return table("Kernels that were not fused", ["kernels", "why"], pairs.length,
      i => [code(pairs[i].kernels.join(" and ")), pairs[i].why]);
  },
  operators(all, at) {
    const nodes = graphOf(all, at).nodes;
    return table("ATen graph", ["node", "operator", "of", "line"], nodes.length,
      i => [code(nodes[i].name), code(nodes[i].operator), nodes[i].of, place(nodes[i].place)]);
  },
  memory(all, at) {
    const {after, peak} = graphOf(all, at).memory, steps = graphOf(all, at).steps;
    return table("Bytes of the graph's own tensors that are alive after each step", ["step", "#bytes", ""], after.length,
      i => [code(steps[i].name), size(after[i]), bar(after[i] / (peak || 1))]);
  },
  captured: (all, at) => [make("pre", all.frames[at].graph, {tabindex: 0})],
  generated: (all, at) => [make("pre", graphOf(all, at).code, {tabindex: 0})],
};
async function fill(details) {
  const {make: maker, of, part} = details.dataset;
  if (maker === undefined && part === undefined) return;
  delete details.dataset.make;
  delete details.dataset.part;
  if (part !== undefined) details.insertAdjacentHTML("beforeend", (await parts())[part]);
  else details.append(...MAKERS[maker](await data(), Number(of)));
}
document.addEventListener("toggle", event => fill(event.target), true);

// A link to a line in a folded part opens the part.
async function reveal(id) {
  let target = document.getElementById(id);
  const folded = [...document.querySelectorAll("details[data-part]")];
  for (let i = 0; !target && i < folded.length; i++)
    if ((await parts())[folded[i].dataset.part].includes(`id="${id}"`)) {
      await fill(folded[i]);
      target = document.getElementById(id);
    }
  for (let at = target; at; at = at.parentElement) if (at.tagName == "DETAILS") at.open = true;
  target?.scrollIntoView();
}
addEventListener("hashchange", () => reveal(decodeURIComponent(location.hash.slice(1))));

// The timeline of a step: + and -, the arrows, 0, and the wheel with Ctrl change the range.
for (const svg of document.querySelectorAll("svg.line")) {
  const [, , whole] = svg.viewBox.baseVal ? [0, 0, svg.viewBox.baseVal.width] : [0, 0, 1];
  let [from, width] = [0, whole];
  const show = (at, wide) => {
    width = Math.min(whole, Math.max(whole / 1000, wide));
    from = Math.min(whole - width, Math.max(0, at));
    svg.setAttribute("viewBox", `${from} 0 ${width} 10`);
  };
  const zoom = (by, at) => show(at - (at - from) * by, width * by);
  const KEYS = {
    "+": () => zoom(0.5, from + width / 2), "-": () => zoom(2, from + width / 2), "0": () => show(0, whole),
    ArrowLeft: () => show(from - width / 4, width), ArrowRight: () => show(from + width / 4, width),
  };
  svg.addEventListener("keydown", event => { if (KEYS[event.key]) { KEYS[event.key](); event.preventDefault() } });
  svg.addEventListener("wheel", event => {
    if (!event.ctrlKey) return;
    const box = svg.getBoundingClientRect();
    zoom(event.deltaY < 0 ? 0.7 : 1.4, from + width * (event.clientX - box.left) / box.width);
    event.preventDefault();
  }, {passive: false});
}
