// A graph as a drawing: boxes of kernels and ATen calls (of nodes, if the graph was not compiled to kernels) in layers,
// and edges from the box that computes a value to the boxes that read it.
const BOXES = 300, WIDE = 190, HIGH = 46, GAP = 18, DOWN = 40, ROW = 8;  // most boxes; pixels; most boxes beside each other

// {boxes: [{key, name, more}], inputs: [Set of positions]}.  A node without a kernel, such as a view, passes its inputs on.
function boxesOf(graph, at) {
  const {nodes, steps} = graph, reads = nodes.map(node => (node.inputs ?? []).filter(k => k >= 0 && k < nodes.length));
  if (!steps.length)
    return {boxes: nodes.map((node, i) => ({key: `n${at}-${i}`, name: node.name, more: node.operator})),
      inputs: reads.map((read, i) => new Set(read.filter(k => k < i)))};
  const position = new Map(nodes.map((node, i) => [node.name, i])), within = nodes.map(() => []);
  const own = steps.map(step => [...new Set(step.operators)].map(name => position.get(name)).filter(i => i !== undefined));
  own.forEach((list, k) => list.forEach(i => within[i].push(k)));
  const passed = [];  // of each node the boxes that its value comes from
  nodes.forEach((_, i) => passed[i] = within[i].length ? within[i].slice(0, 1) : [...new Set(reads[i].flatMap(k => passed[k] ?? []))]);
  const inputs = own.map((list, k) => {
    const inside = new Set(list);
    const from = list.flatMap(i => reads[i].filter(n => !inside.has(n)).flatMap(n => passed[n] ?? []));
    return new Set(from.filter(other => other < k).sort((a, b) => a - b));
  });
  const times = least(graph).length == steps.length ? least(graph) : [];
  return {inputs, boxes: steps.map((step, k) => ({key: `s${at}-${k}`, name: brief(step.name),
    kind: step.kind == "aten" ? "aten" : "kernel",
    more: [k in times ? nanoseconds(times[k]) : "", step.operators.join(", ")].filter(text => text).join(" · ")}))};
}
// Places: the layer of a box is one below its lowest input; in a layer boxes are ordered by the middle of their inputs.
function layers(inputs) {
  const layer = [], rows = [], x = [];
  inputs.forEach((read, i) => {
    layer[i] = Math.max(-1, ...[...read].map(k => layer[k])) + 1;
    (rows[layer[i]] ??= []).push(i);
  });
  const places = [];
  let y = GAP, widest = 1;
  for (const row of rows) {
    const middle = i => inputs[i].size ? [...inputs[i]].reduce((sum, k) => sum + x[k], 0) / inputs[i].size : 0;
    const sorted = row.map(i => [middle(i), i]).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(([, i]) => i);
    for (let k = 0; k < sorted.length; k += ROW) {
      const part = sorted.slice(k, k + ROW), width = part.length * (WIDE + GAP) - GAP;
      part.forEach((i, n) => { x[i] = n * (WIDE + GAP) - width / 2; places[i] = {x: x[i], y} });
      widest = Math.max(widest, width);
      y += HIGH + DOWN;
    }
  }
  return {places, width: widest + 2 * SIDE, height: y};
}
// A path and its head.  An edge over several layers passes on the right of the boxes between its ends.
const SIDE = 150;  // pixels: the farthest such a path goes
function arrow(a, b) {
  if (b.y - a.y > HIGH + DOWN) {
    const [x1, y1, x2, y2] = [a.x + WIDE, a.y + HIGH / 2, b.x + WIDE + 6, b.y + HIGH / 2 - 8];
    const side = Math.max(x1, x2) + Math.min(SIDE, 24 + (y2 - y1) / 12);
    return [shape("path", {d: `M${x1},${y1} C${side},${y1} ${side},${y2} ${x2},${y2}`}),
      shape("polygon", {points: `${x2},${y2 - 4} ${x2},${y2 + 4} ${x2 - 6},${y2}`})];
  }
  const [x1, y1, x2, y2] = [a.x + WIDE / 2, a.y + HIGH, b.x + WIDE / 2, b.y - 6], bend = DOWN / 2;
  return [shape("path", {d: `M${x1},${y1} C${x1},${y1 + bend} ${x2},${y2 - bend} ${x2},${y2}`}),
    shape("polygon", {points: `${x2 - 4},${y2} ${x2 + 4},${y2} ${x2},${y2 + 6}`})];
}
function drawing(graph, at) {
  const made = boxesOf(graph, at), drawn = Math.min(BOXES, made.boxes.length);
  const boxes = made.boxes.slice(0, drawn), inputs = made.inputs.slice(0, drawn), {places, width, height} = layers(inputs);
  const edges = inputs.flatMap((read, i) => [...read].map(k => [k, i]));
  const status = make("p", "\u00a0", {role: "status", class: "about"});
  const what = `${counted(drawn, graph.steps.length ? "step" : "node")} and ${counted(edges.length, "edge")}`;
  const svg = shape("svg", {class: "drawing", tabindex: 0, role: "application", preserveAspectRatio: "xMidYMin meet",
    "aria-label": `Drawing of ${graphName(graph)}: ${what}`});
  const arrows = edges.map(([from, to]) =>
    shape("g", {class: "edge", "data-ends": `${boxes[from].key} ${boxes[to].key}`}, arrow(places[from], places[to])));
  const items = boxes.map((box, i) => ({key: box.key, ...places[i], width: WIDE, height: HIGH, text: `${box.name}: ${box.more}`}));
  const rects = boxes.map((box, i) => shape("g", {class: `box ${box.kind ?? "rest"}`, "data-item": i, "data-key": box.key,
    transform: `translate(${places[i].x},${places[i].y})`}, [shape("title", {}, items[i].text),
    shape("rect", {width: WIDE, height: HIGH, rx: 4}), shape("rect", {class: `stripe ${box.kind ?? "rest"}`, width: 6, height: HIGH, rx: 2}),
    shape("text", {x: 14, y: 19, class: "head"}, cut(box.name, WIDE - 34)), shape("text", {x: 14, y: 36}, cut(box.more, WIDE - 16))]));
  svg.append(...arrows, ...rects);
  const draw = r => {
    svg.setAttribute("viewBox", `${r.x} ${r.y} ${r.width} ${r.height}`);
    rects.forEach((rect, i) => rect.classList.toggle("chosen", view?.selected === i));
  };
  const whole = {x: -width / 2, y: 0, width, height};
  let view;
  // The first look: the top of the graph, one pixel a unit.
  const first = () => {
    const ratio = svg.clientHeight / (svg.clientWidth || 1), wide = Math.max(width, height / ratio, svg.clientWidth);
    Object.assign(view.whole, {x: -wide / 2, width: wide, height: Math.max(height, wide * ratio)});
    const near = svg.clientWidth || 600;
    view.show({x: -near / 2, y: 0, width: near, height: near * ratio});
  };
  view = new View(svg, {whole, flat: false, draw, items: () => items, status});
  new ResizeObserver((_, seen) => { seen.disconnect(); first() }).observe(svg);
  const left = made.boxes.length - drawn;
  return [make("p", [left ? `The first ${drawn} boxes of ${made.boxes.length.toLocaleString("en")}: ` : "", `${what}. `,
    "Keys: + and - zoom, arrows move, 0 shows the whole, n and p select boxes, Enter opens the row of a box. ",
    "The tables above have the same steps and inputs."], {class: "dim"}), svg, status];
}
