// A view of a drawing: a range that keys, the wheel with Ctrl and a drag change, and one selected item.
// + and - zoom, the arrows move, 0 shows the whole, n and p select the next and the previous item, Enter opens its row.
const SVG = "http://www.w3.org/2000/svg";
function shape(tag, attributes, content) {
  const made = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (content !== undefined) made.append(...[content].flat());
  return made;
}
class View {
  // whole: {x, y, width, height}.  flat: only x changes.  draw(range): draws it.  items(): {key, text, x, y, width, height}.
  constructor(svg, {whole, flat, draw, items, start, status}) {
    Object.assign(this, {svg, whole, flat, draw, items, status, range: {...(start ?? whole)}, selected: null, drag: null});
    svg.addEventListener("keydown", event => this.key(event));
    svg.addEventListener("wheel", event => this.wheel(event), {passive: false});
    svg.addEventListener("pointerdown", event => {
      if (event.button == 0) this.drag = {x: event.clientX, y: event.clientY, id: event.pointerId, from: {...this.range}, moved: false};
    });
    svg.addEventListener("pointermove", event => this.move(event));
    for (const kind of ["pointerup", "pointercancel"]) svg.addEventListener(kind, () => this.drag = null);
    svg.addEventListener("pointerover", event => {
      const at = event.target.closest("[data-item]");
      if (at && !this.drag) this.tell(this.items()[at.dataset.item]);
    });
  }
  show(range) {
    const {whole, flat} = this, width = Math.min(whole.width, Math.max(whole.width / 10000, range.width));
    const height = flat ? whole.height : width * range.height / range.width;
    const within = (at, least, most) => Math.max(least, Math.min(Math.max(least, most), at));
    this.range = {x: within(range.x, whole.x, whole.x + whole.width - width), width, height,
      y: flat ? whole.y : within(range.y, whole.y, whole.y + whole.height - height)};
    this.draw(this.range);
  }
  // by: a factor; at: the point that stays, in shares of the view.
  zoom(by, {x, y} = {x: 0.5, y: 0.5}) {
    const r = this.range, scale = Math.min(this.whole.width / r.width, Math.max(this.whole.width / 10000 / r.width, by));
    this.show({x: r.x + r.width * x * (1 - scale), y: r.y + r.height * y * (1 - scale), width: r.width * scale, height: r.height * scale});
  }
  pan(x, y) {
    const r = this.range;
    this.show({...r, x: r.x + r.width * x, y: r.y + r.height * y});
  }
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = {
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), "0": () => this.show(this.whole),
      ArrowLeft: () => this.pan(-0.25, 0), ArrowRight: () => this.pan(0.25, 0),
      ...(this.flat ? {} : {ArrowUp: () => this.pan(0, -0.25), ArrowDown: () => this.pan(0, 0.25)}),
      n: () => this.select(1), p: () => this.select(-1),
      Enter: () => { const key = this.items()[this.selected]?.key; if (key) location.hash = `#${key}` },
    };
    if (!Object.hasOwn(keys, event.key)) return;
    keys[event.key]();
    event.preventDefault();
  }
  wheel(event) {
    if (!event.ctrlKey) return;
    const box = this.svg.getBoundingClientRect();
    this.zoom(event.deltaY < 0 ? 0.7 : 1.4, {x: (event.clientX - box.left) / box.width, y: (event.clientY - box.top) / box.height});
    event.preventDefault();
  }
  move(event) {
    if (!this.drag) return;
    const {x, y, id, from} = this.drag, box = this.svg.getBoundingClientRect();
    if (!this.drag.moved && Math.hypot(event.clientX - x, event.clientY - y) < 4) return;
    if (!this.drag.moved) this.svg.setPointerCapture(id);
    this.drag.moved = true;
    this.show({...from, x: from.x - (event.clientX - x) / box.width * from.width,
      y: from.y - (event.clientY - y) / box.height * from.height});
  }
  select(by) {
    const items = this.items(), r = this.range;
    if (!items.length) return;
    const inside = items.findIndex(item => item.x + item.width >= r.x && item.y + item.height >= r.y);
    const next = this.selected === null ? Math.max(0, inside) : this.selected + by;
    this.selected = Math.min(items.length - 1, Math.max(0, next));
    const item = items[this.selected];
    const outside = item.x + item.width < r.x || item.x > r.x + r.width
      || !this.flat && (item.y < r.y || item.y + item.height > r.y + r.height);
    this.show(outside ? {...r, x: item.x + item.width / 2 - r.width / 2, y: item.y + item.height / 2 - r.height / 2} : r);
    this.tell(item);
    if (item.key) light(item.key);
  }
  tell(item) { if (item) this.status.textContent = item.text }
}
