// The script of a report's page: its data and folded tables.  `html_parts.SCRIPTS` names the files that follow this one.
// The page has its data once, compressed; folded tables and texts are made of the data when the reader opens them.
// Strings of the data become text nodes, never markup.
"use strict";
const OPEN = 40, PART = 500;  // rows that are visible at once; rows of each further part

function inflate(id) {
  const text = document.getElementById(id).textContent.trim();
  const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}
const once = make => { let made; return () => made ??= make() };
// Inverses of `page_data.templates_of` and `page_data.encode`.
function texts({templates, of, numbers}) {
  let at = 0;
  return of.map(k => templates[k].replace(/\x7f/g, () => numbers[at++]));
}
function decode(value, shared) {
  if (Array.isArray(value)) return value.map(item => decode(item, shared));
  if (value === null || typeof value != "object") return value;
  if ("$" in value) return shared[value.$];
  if ("$texts" in value) return texts(value.$texts);
  if ("$lines" in value) return texts(value.$lines).join("\n");
  if ("$columns" in value) {
    const columns = Object.entries(value.$columns).map(([key, items]) => key != "~inputs" ? [key, decode(items, shared)]
      : ["inputs", items.map((distances, i) => distances.map(distance => i - distance))]);
    return columns[0][1].map((_, i) => Object.fromEntries(columns.map(([key, items]) => [key, items[i]])));
  }
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, decode(item, shared)]));
}
function decoded({shared, data}) {
  const known = [];
  for (const item of shared) known.push(decode(item, known));
  return decode(data, known);
}
const data = once(() => inflate("document").then(decoded));
const timeline = once(() => inflate("timeline").then(decoded));
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
function innermost(stack) {
  const shown = stack.filter(f => lines()[`${f.file}:${f.line}`]), f = (shown.length ? shown : stack).at(-1);
  return f ? `${f.file}:${f.line}` : "";
}
const graphName = graph => `${graph.kind} graph ${graph.number}` + (graph.model === null ? "" : ` of model ${graph.model}`)
  + (graph.title ? `, ${graph.title}` : "");

// Tables: heads with a leading "#" are columns of numbers; rows beyond OPEN are made when their part is opened.
// key: the key of a row (`links.js`).  The result has `reveal`, which shows the row of a key.
function table(caption, heads, count, row, key) {
  const number = heads.map(head => head[0] == "#");
  const filled = (first, last) => {
    const head = make("tr", heads.map((h, k) => make("th", h.replace("#", ""), {scope: "col", class: number[k] ? "n" : ""})));
    const body = make("tbody", []);
    for (let i = first; i < last; i++)
      body.append(make("tr", row(i).map((cell, k) => make("td", cell, {class: number[k] ? "n" : "wrap"})),
        key ? {"data-key": key(i)} : {}));
    return make("div", make("table", [make("caption", caption), make("thead", head), body]), {class: "wide"});
  };
  const made = [filled(0, Math.min(OPEN, count))], opened = [];
  for (let k = OPEN; k < count; k += PART) {
    const last = Math.min(k + PART, count), [from, to, all] = [k + 1, last, count].map(n => n.toLocaleString("en"));
    const part = make("details", make("summary", `${from} to ${to} of ${all}`), {class: "part"});
    const fill = once(() => { part.append(filled(k, last)); reachable(part); mark(part); return true });
    part.addEventListener("toggle", fill, {once: true});
    made.push(part);
    opened.push(() => { part.open = fill() });
  }
  if (count > OPEN) {
    const label = make("label", ["filter: ", make("input", null, {type: "search", class: "filter"})]);
    label.lastChild.addEventListener("input", event => {
      const wanted = event.target.value.toLowerCase(), found = [];
      for (let i = 0; wanted && i < count; i++) if (make("tr", row(i)).textContent.toLowerCase().includes(wanted)) found.push(i);
      label.parentElement.querySelectorAll(":scope > .found").forEach(old => old.remove());
      if (!wanted) return;
      const shown = make("div", table(`${counted(found.length, "row")} with “${event.target.value}”`, heads,
        Math.min(found.length, OPEN), k => row(found[k]), key && (k => key(found[k]))), {class: "found"});
      label.after(shown);
    });
    made.unshift(label);
  }
  made.reveal = wanted => {
    for (let i = 0; i < count; i++) if (key(i) == wanted) return i >= OPEN && opened[Math.floor((i - OPEN) / PART)]();
  };
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
      return [nanoseconds(ns), bar((ns ?? 0) / top), code(short(guard.text)), place(innermost(guard.stack))];
    }, k => `g${at}-${order[k]}`);
  },
  steps(all, at) {
    const graph = graphOf(all, at), times = least(graph).length == graph.steps.length ? least(graph) : [];
    const places = Object.fromEntries(graph.nodes.map(n => [n.name, n.place])), top = times.reduce((a, b) => Math.max(a, b), 0);
    const {inputs} = boxesOf(graph, at);
    return table("Steps in order: least time of a call, bytes read and written",
      ["step", "#time", "", "operators fused into it", "#reads", "#writes", "reads from", "lines"], graph.steps.length, i => {
        const step = graph.steps[i], used = [...new Set(step.operators.map(o => places[o]).filter(p => p))].slice(0, 3);
        const names = step.operators.slice(0, OPEN).join(", ") + (step.operators.length > OPEN ? ", …" : "");
        return [code(step.name), nanoseconds(times[i]), bar((times[i] ?? 0) / top), code(names), size(step.reads),
          size(step.writes), code([...inputs[i]].slice(0, OPEN).map(k => graph.steps[k].name).join(", ")), used.flatMap(where => [place(where), " "])];
      }, i => `s${at}-${i}`);
  },
  unfused(all, at) {
    const pairs = graphOf(all, at).unfused;
    return table("Kernels that were not fused", ["kernels", "why"], pairs.length,
      i => [code(pairs[i].kernels.join(" and ")), pairs[i].why]);
  },
  operators(all, at) {
    const nodes = graphOf(all, at).nodes;
    const read = node => (node.inputs ?? []).filter(k => k in nodes).map(k => nodes[k].name).join(", ");
    return table("ATen graph", ["node", "operator", "inputs", "of", "line"], nodes.length,
      i => [code(nodes[i].name), code(nodes[i].operator), code(read(nodes[i])), nodes[i].of, place(nodes[i].place)],
      i => `n${at}-${i}`);
  },
  memory(all, at) {
    const {after, peak} = graphOf(all, at).memory, steps = graphOf(all, at).steps;
    return table("Bytes of the graph's own tensors that are alive after each step", ["step", "#bytes", ""], after.length,
      i => [code(steps[i].name), size(after[i]), bar(after[i] / (peak || 1))]);
  },
  drawing: (all, at) => drawing(graphOf(all, at), at),
  async timeline() {
    const bars = barsOf(await timeline());
    return table("Parts of the step in order", ["#begin", "#time", "part", "of", "lane"], bars.length,
      i => [nanoseconds(bars[i].x), nanoseconds(bars[i].width), bars[i].label, bars[i].of, bars[i].lane], i => bars[i].key);
  },
  captured: (all, at) => [make("pre", all.frames[at].graph, {tabindex: 0})],
  generated: (all, at) => [make("pre", graphOf(all, at).code, {tabindex: 0})],
};
const filling = new WeakMap();  // a folded part that is being filled, or is filled
function fill(details) {
  const {make: maker, of, part} = details.dataset;
  if (maker === undefined && part === undefined) return filling.get(details);
  delete details.dataset.make;
  delete details.dataset.part;
  details.dataset.made = maker ?? "";
  const filled = (async () => {
    if (part !== undefined) details.insertAdjacentHTML("beforeend", (await parts())[part]);
    else {
      const made = await MAKERS[maker](await data(), Number(of));
      details.append(...made);
      details.reveal = made.reveal;
    }
    reachable(details);
    mark(details);
  })();
  filling.set(details, filled);
  return filled;
}
document.addEventListener("toggle", event => fill(event.target), true);
