// The timeline of a step: lanes of bars, markers of graph breaks, an axis.
const AXIS = 22, LANE = 40, BAR = 20, LETTER = 6.4;  // pixels: axis, lane with its name, bar, width of a letter
const barsOf = line => line.lanes.flatMap((lane, k) => lane.bars.map(bar => ({...bar, lane: lane.name, at: k})))
  .sort((a, b) => a.x - b.x || a.at - b.at);
// Moments of an axis: multiples of 1, 2 or 5 times a power of ten, at most `most` of them.
function ticks(from, width, most) {
  const power = 10 ** Math.floor(Math.log10(width / most)), step = power * [1, 2, 5, 10].find(n => width / (power * n) <= most);
  const first = Math.ceil(from / step - 1e-9);
  return Array.from({length: Math.floor((from + width) / step + 1e-9) - first + 1}, (_, i) => (first + i) * step);
}
const cut = (text, wide) => text.length * LETTER <= wide ? text : wide < 5 * LETTER ? "" : text.slice(0, wide / LETTER - 1) + "…";
const brief = name => name.replace(/^(kernel|ATen) /, "").replace(/\.default$/, "");

function drawTimeline(place, line) {
  const bars = barsOf(line).map(bar => ({...bar, y: 0, height: 1,
    text: `${bar.label}${bar.of ? ` of ${bar.of}`.replace("of before", "before") : ""}: ${nanoseconds(bar.width)}, at ${nanoseconds(bar.x)}`}));
  const breaks = line.breaks.map(row => ({...row, y: 0, width: 0, height: 1, isBreak: true, text: `${row.text}, at ${nanoseconds(row.x)}`}));
  const items = [...breaks, ...bars].sort((a, b) => a.x - b.x);
  const height = AXIS + LANE * line.lanes.length + 4;
  const counts = [counted(bars.length, "part"), counted(breaks.length, "graph break"), line.lanes.map(lane => lane.name).join(", ")];
  const svg = shape("svg", {class: "line", tabindex: 0, role: "application", height, "aria-describedby": "timeline-keys timeline-status",
    "aria-label": `Timeline of a step of ${nanoseconds(line.whole)}: ${counts.join("; ")}`});
  const status = make("p", "\u00a0", {role: "status", id: "timeline-status", class: "about"});
  const draw = ({x, width}) => {
    const wide = svg.clientWidth || 600, scale = wide / width, made = [];
    const within = bar => bar.x < x + width && bar.x + Math.max(bar.width, 1 / scale) > x;
    for (const moment of ticks(x, width, Math.max(2, Math.floor(wide / 110)))) {
      const at = (moment - x) * scale;
      made.push(shape("line", {class: "tick", x1: at, x2: at, y1: AXIS - 6, y2: height}),
        shape("text", {class: "axis", x: at + 3, y: AXIS - 8}, nanoseconds(moment)));
    }
    line.lanes.forEach((lane, k) => made.push(shape("text", {class: "axis", x: 3, y: AXIS + LANE * k + 13}, lane.name)));
    const drawn = {};  // lane -> the last pixel that has a bar
    items.forEach((bar, i) => {
      if (bar.isBreak || !within(bar)) return;
      const left = Math.max(-4, (bar.x - x) * scale), right = Math.min(wide + 4, (bar.x + bar.width - x) * scale);
      const chosen = view?.selected === i;
      if (right < (drawn[bar.at] ?? -9) + 0.5 && right - left < 0.5 && !chosen) return;  // less than a pixel, and covered
      drawn[bar.at] = Math.max(right, left + 1);
      const top = AXIS + LANE * bar.at + 18;
      made.push(shape("rect", {class: `${bar.kind}${chosen ? " chosen" : ""}${right - left < 4 ? " thin" : ""}`, x: left, y: top, width: Math.max(1, right - left), height: BAR,
        "data-item": i, "data-key": bar.key}, shape("title", {}, bar.text)));
      const from = Math.max(left, 0) + 4, label = cut(brief(bar.label), Math.min(right, wide) - from - 4);
      if (label) made.push(shape("text", {class: "label", x: from, y: top + 14}, label));
    });
    items.forEach((row, i) => {
      if (!row.isBreak || row.x < x || row.x > x + width) return;
      const at = (row.x - x) * scale;
      made.push(shape("g", {class: view?.selected === i ? "break chosen" : "break", "data-item": i, "data-key": row.key}, [shape("title", {}, row.text),
        shape("line", {x1: at, x2: at, y1: AXIS, y2: height}),
        shape("polygon", {points: `${at - 6},${AXIS - 2} ${at + 6},${AXIS - 2} ${at},${AXIS + 8}`})]));
    });
    svg.replaceChildren(...made);
    [svg.dataset.from, svg.dataset.width] = [x, width];
    mark(svg);
  };
  let view;
  place.replaceChildren(
    make("p", ["The last measured step in order", line.busy ? ", recorded under the profiler: " : ". ",
      line.busy ? make("b", `device busy ${line.busy}`) : "", line.busy ? ". " : "", line.breaks.length ? "▼ marks a graph break. " : "",
      "Keys: + and - zoom, arrows move, 0 shows the whole step, n and p select parts, Enter opens the row of a part. Ctrl and the wheel zoom; a drag moves."],
    {class: "dim", id: "timeline-keys"}), svg, status,
    make("ul", legend(line).map(([kind, name]) => make("li", [make("span", "", {class: `key ${kind}`, "aria-hidden": "true"}), name])), {class: "keys"}));
  view = new View(svg, {whole: {x: 0, y: 0, width: line.whole || 1, height: 1}, flat: true, draw, items: () => items, status});
  view.show(view.range);
  new ResizeObserver(() => view.show(view.range)).observe(svg);
}
const LEGEND = {kernel: "kernel", aten: "ATen call", rest: "allocations and views", guards: "guards", dispatch: "dispatch",
  eager: "eager code at breaks", outside: "the program around", device: "device"};
const legend = line => Object.entries(LEGEND).filter(([kind]) => line.lanes.some(lane => lane.bars.some(bar => bar.kind == kind)));
const timelinePlace = document.getElementById("timeline-place");
if (timelinePlace) timeline().then(line => line && drawTimeline(timelinePlace, line));
