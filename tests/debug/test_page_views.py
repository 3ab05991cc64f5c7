"""The timeline, the drawings, the search and the links of a report's page, in a real browser."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler.debug.document import Document
from pycompiler.debug.events import Recorder
from pycompiler.debug.page import page as page_of
from pycompiler.debug.step_shares import timeline_of
from tests.debug import browser

pytestmark = pytest.mark.usefixtures("chromium")
NAMES = {f"name {i}": i for i in range(60)}  # more guards than a table shows at once


def program(x: Any, w: Any) -> Any:
    y = (x @ w).relu() + len([k for k in NAMES if k])
    print("a step")
    y = torch.fft.fft(y.softmax(-1)).real + x
    return (y @ w).sum()


@pytest.fixture(scope="module")
def document() -> Document:
    """A step of round numbers: 1 µs a kernel, so that each has its pixels; and a device's track."""
    events: list[Any] = []
    compiled = pycompiler.compile(program)
    w = torch.randn(8, 8, requires_grad=True)
    with Recorder(events.append, costs=True):
        for _ in range(8):
            compiled(torch.ones(8, 8), w).backward()
    events = json.loads(json.dumps(events, default=str))
    steps = [event for event in events if event["event"] == "steps"][-1]
    inner = iter(steps["inner"])
    for row in steps["last"]:
        row[2] = 1000.0 * (len(next(inner)) + 1 if row[0] == "graph" else 1)
    steps["inner"] = [[1000] * len(times) for times in steps["inner"]]
    steps["device"] = [["a kernel", 1000.0, 2000.0, 7], ["a copy", 4000.0, 1000.0, 13]]
    return Document.of(events)


@pytest.fixture(scope="module")
def file(document: Document, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page_of(document), encoding="utf-8")
    return path


@pytest.fixture
def opened(file: Path, chromium: browser.Browser) -> browser.Page:
    made = chromium.open(file)
    made.run(
        "new Promise(done => { const look = () => document.querySelector('svg.line rect') ? done(null) : setTimeout(look, 5); look() })"
    )
    return made


def key(opened: browser.Page, *names: str) -> None:
    for name in names:
        opened.run(
            f"document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {{key: {name!r}, bubbles: true}})), null"
        )


def settled(opened: browser.Page, condition: str) -> None:
    """Waits until a condition holds."""
    opened.run(
        f"new Promise(done => {{ const look = () => ({condition}) ? done(null) : setTimeout(look, 5); look() }})"
    )


def lit(opened: browser.Page) -> set[str]:
    return set(opened.run("[...document.querySelectorAll('.lit[data-key]')].flatMap(e => e.dataset.key.split(' '))"))


def line(of: int) -> str:
    return f"L0-{program.__code__.co_firstlineno + of}"


def in_python(document: Document) -> tuple[dict[str, set[str]], dict[str, set[str]], dict[str, set[str]]]:
    """For each line its nodes, the kernels of those and its guards, found without the page's script."""
    nodes: dict[str, set[str]] = {}
    steps: dict[str, set[str]] = {}
    guards: dict[str, set[str]] = {}
    for g, graph in enumerate(document.graphs):
        for i, node in enumerate(graph["nodes"]):
            if at := document.id_of(node["place"]):
                nodes.setdefault(at, set()).add(f"n{g}-{i}")
                own = {f"s{g}-{k}" for k, step in enumerate(graph["steps"]) if node["name"] in step["operators"]}
                steps[at] = steps.get(at, set()) | own
    for f, frame in enumerate(document.frames):
        for i, guard in enumerate(frame["guards"]):
            shown = [at for row in guard["stack"] if (at := document.id_of(f"{row['file']}:{row['line']}"))]
            if shown:
                guards.setdefault(shown[-1], set()).add(f"g{f}-{i}")
    return nodes, steps, guards


# the timeline --------------------------------------------------------------------------------------------------
def test_each_kernel_of_the_step_has_a_bar(document: Document, opened: browser.Page) -> None:
    steps = document.main_steps
    assert steps is not None
    at = {graph["number"]: k for k, graph in enumerate(document.graphs)}
    ran = [at[number] for part, number, _ in steps["last"] if part == "graph"]
    expected = {f"s{g}-{k}" for g in ran for k in range(len(document.graphs[g]["steps"]))}
    assert len(ran) >= 3 and len(expected) > 4  # forwards and a backward
    shown = opened.run(
        "[...document.querySelectorAll('svg.line rect.kernel, svg.line rect.aten')].map(e => e.dataset.key)"
    )
    assert set(shown) == expected and len(shown) == len(expected)
    lanes = opened.run("[...document.querySelectorAll('svg.line text.axis')].map(e => e.textContent)")
    for lane in ("program", "guards and dispatch", "forward", "backward", "device, stream 7", "device, stream 13"):
        assert lane in lanes
    assert any(text.endswith(" µs") for text in lanes)  # the axis
    assert opened.run("document.querySelectorAll('svg.line rect.device').length") == 2


def test_breaks_are_markers_with_their_reason(opened: browser.Page) -> None:
    titles = opened.run("[...document.querySelectorAll('svg.line .break title')].map(e => e.textContent)")
    assert titles and titles[0].startswith("graph break [builtin-call]: ") and "print('a step')" in titles[0]
    assert opened.run("document.querySelector('svg.line .break').dataset.key") == line(2)


def test_the_devices_share_is_told(document: Document, opened: browser.Page) -> None:
    found = timeline_of(document)
    assert found is not None
    assert f"device busy {found['busy']}" in opened.run("document.querySelector('#timeline-keys').textContent")


def test_keys_zoom_move_and_select(opened: browser.Page) -> None:
    view = "[document.activeElement.dataset.from, document.activeElement.dataset.width].map(Number)"
    opened.run("document.querySelector('svg.line').focus(), null")
    _, whole = opened.run(view)
    before = opened.run("document.querySelectorAll('svg.line rect').length")
    key(opened, "+", "+")
    assert opened.run(view) == pytest.approx([whole * 3 / 8, whole / 4])
    assert 0 < opened.run("document.querySelectorAll('svg.line rect').length") < before
    key(opened, "ArrowLeft")
    assert opened.run(view) == pytest.approx([whole * 5 / 16, whole / 4])
    key(opened, "0")
    assert opened.run(view) == pytest.approx([0, whole])
    key(opened, "n", "n")
    text = opened.run("document.querySelector('#timeline-status').textContent")
    assert ": 1 µs, at 1 µs" in text
    assert opened.run("document.querySelectorAll('svg.line rect.chosen').length") == 1
    key(opened, "p")
    assert opened.run("document.querySelector('#timeline-status').textContent").endswith(": 1 µs, at 0 ns")


def test_a_drag_moves_the_timeline(opened: browser.Page) -> None:
    opened.run(
        "document.querySelector('svg.line').scrollIntoView({block: 'center'}), document.querySelector('svg.line').focus(), null"
    )
    key(opened, "+")
    box = opened.run(
        "(({x, y, width, height}) => [x, y, width, height])(document.querySelector('svg.line').getBoundingClientRect())"
    )
    view = "[document.activeElement.dataset.from, document.activeElement.dataset.width].map(Number)"
    start, width = opened.run(view)
    x, y = box[0] + box[2] / 2, box[1] + box[3] - 3
    for kind, dx in (("mousePressed", 0), ("mouseMoved", box[2] / 10), ("mouseReleased", box[2] / 10)):
        opened.call("Input.dispatchMouseEvent", type=kind, x=x + dx, y=y, button="left", buttons=1, clickCount=1)
    assert opened.run(view) == pytest.approx([start - width / 10, width], rel=0.02)


def test_the_timeline_is_a_table_too(document: Document, opened: browser.Page) -> None:
    found = timeline_of(document)
    assert found is not None
    opened.run("document.querySelector('details[data-make=timeline]').open = true, null")
    settled(opened, "document.querySelector('details[data-made=timeline] tbody')")
    rows = opened.run(
        "[...document.querySelectorAll('details[data-made=timeline] tbody tr')].map(e => [...e.cells].map(c => c.textContent))"
    )
    assert len(rows) == min(40, sum(len(lane["bars"]) for lane in found["lanes"]))
    assert ["1 µs", "2 µs", "a kernel", "stream 7", "device, stream 7"] in rows


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_bars_stand_out_and_their_labels_can_be_read(scheme: str, opened: browser.Page) -> None:
    opened.scheme(scheme)
    script = """(() => {
      const light = text => text.match(/[0-9.]+/g).slice(0, 3).map(v => v / 255)
        .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
      const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      const svg = document.querySelector('svg.line'), paper = light(getComputedStyle(svg).backgroundColor);
      const fill = e => light(getComputedStyle(e).fill), label = light('rgb(255, 255, 255)');
      const bars = [...svg.querySelectorAll('rect')].map(e => [e.classList[0], ratio(fill(e), paper), ratio(fill(e), label)]);
      const axis = [...svg.querySelectorAll('text.axis')].map(e => ratio(fill(e), paper));
      const marker = ratio(fill(svg.querySelector('.break polygon')), paper);
      return {bars, axis, marker, label: getComputedStyle(svg.querySelector('text.label')).fill} })()"""
    found = opened.run(script)
    opened.scheme("light")
    assert len({kind for kind, *_ in found["bars"]}) >= 6
    assert [row for row in found["bars"] if row[1] < 3 or row[2] < 4.5] == []
    assert min(found["axis"]) >= 4.5 and found["marker"] >= 3 and found["label"] == "rgb(255, 255, 255)"


# links ---------------------------------------------------------------------------------------------------------
def test_a_focused_line_lights_its_nodes_kernels_and_guards(document: Document, opened: browser.Page) -> None:
    nodes, steps, guards = in_python(document)
    at = line(1)
    assert nodes[at] and steps[at] and len(guards[at]) > 1
    for table in ("guards", "steps", "operators"):
        opened.run(f"document.querySelectorAll('details[data-make={table}]').forEach(d => d.open = true)")
    settled(opened, "!document.querySelector('details[data-make=guards], details[data-make=steps], details[data-make=operators]')"
            " && document.querySelectorAll('details[data-made=operators] tbody tr').length")  # fmt: skip
    opened.run(f"document.getElementById({at!r}).focus(), null")
    settled(opened, f"document.getElementById({at!r}).classList.contains('lit')")
    found = lit(opened)
    shown = set(opened.run("[...document.querySelectorAll('[data-key]')].flatMap(e => e.dataset.key.split(' '))"))
    assert {k for k in found if k[0] in "Lns"} == {at} | nodes[at] | steps[at]
    assert guards[at] & shown <= found
    bars = opened.run("[...document.querySelectorAll('svg.line rect.lit')].map(e => e.dataset.key)")
    assert bars and set(bars) <= steps[at]
    outline = opened.run(f"getComputedStyle(document.getElementById({at!r})).outlineStyle")
    stroke = opened.run("getComputedStyle(document.querySelector('svg.line rect.lit')).strokeWidth")
    assert (outline, stroke) == ("solid", "2px")  # not by colour alone
    panel = opened.run("document.querySelector('#together').textContent")
    assert panel.startswith("Lit: 1 source line") and f"{len(guards[at])} guards" in panel
    key(opened, "Escape")
    settled(opened, "!document.querySelector('.lit')")
    assert opened.run("document.querySelector('#together').hidden") is True


def test_a_pointer_over_a_bar_lights_its_line(document: Document, opened: browser.Page) -> None:
    nodes, steps, _ = in_python(document)
    at = next(line for line in steps if steps[line])
    bar = next(iter(sorted(steps[at])))
    opened.run(f"document.querySelector('svg.line').scrollIntoView({{block: 'center'}}), null")
    x, y = opened.run(
        f"(b => [b.x + b.width / 2, b.y + b.height / 2])(document.querySelector('svg.line rect[data-key=\"{bar}\"]').getBoundingClientRect())"
    )
    opened.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    settled(opened, f"document.getElementById({at!r}).classList.contains('lit')")
    assert bar in lit(opened)
    assert opened.run("document.querySelector('#timeline-status').textContent").strip()


def test_arrows_move_between_the_rows_of_a_table(opened: browser.Page) -> None:
    rows = opened.run(
        "[...document.querySelectorAll('table.source')[0].querySelectorAll('tr[data-key]')].map(e => [e.id, e.tabIndex])"
    )
    assert [index for _, index in rows] == [0] + [-1] * (len(rows) - 1)  # one stop of the Tab key
    opened.run(f"document.getElementById({rows[0][0]!r}).focus(), null")
    key(opened, "ArrowDown", "ArrowDown", "ArrowUp")
    assert opened.run("document.activeElement.id") == rows[1][0]
    assert opened.run("document.activeElement.tabIndex") == 0


# drawings ------------------------------------------------------------------------------------------------------
def edges_of(graph: Any, at: int) -> set[str]:
    """Edges between steps, through nodes without a step, found without the page's script."""
    first = {}
    for k, step in reversed(list(enumerate(graph["steps"]))):
        first |= dict.fromkeys(step["operators"], k)
    nodes = graph["nodes"]

    def made_by(i: int) -> set[int]:
        known = first.get(nodes[i]["name"])
        return {known} if known is not None else {k for j in nodes[i]["inputs"] for k in made_by(j)}

    return {
        f"s{at}-{other} s{at}-{k}"
        for k, step in enumerate(graph["steps"])
        for i, node in enumerate(nodes) if node["name"] in step["operators"]
        for j in node["inputs"] if nodes[j]["name"] not in step["operators"]
        for other in made_by(j) if other < k
    }  # fmt: skip


def test_a_drawing_has_the_graphs_boxes_and_edges(document: Document, opened: browser.Page) -> None:
    at = max(range(len(document.graphs)), key=lambda k: len(document.graphs[k]["steps"]))
    graph, details = (
        document.graphs[at],
        f"document.querySelector('details[data-of=\"{at}\"]:is([data-make=drawing], [data-made=drawing])')",
    )
    opened.run(f"{details}.open = true, null")
    settled(opened, f"{details}.querySelector('svg')")
    assert opened.run(f"[...{details}.querySelectorAll('.box')].map(e => e.dataset.key)") == [
        f"s{at}-{k}" for k in range(len(graph["steps"]))
    ]
    found = opened.run(f"[...{details}.querySelectorAll('.edge')].map(e => e.dataset.ends)")
    assert set(found) == edges_of(graph, at) and len(found) == len(set(found)) > 1
    tops = opened.run(f"[...{details}.querySelectorAll('.box')].map(e => e.getBoundingClientRect().top)")
    ends = [[int(end.rpartition("-")[2]) for end in edge.split()] for edge in found]
    assert all(tops[a] < tops[b] for a, b in ends)  # values flow downwards
    # The table beside it has the same edges.
    opened.run(f"document.querySelector('details[data-make=steps][data-of=\"{at}\"]').open = true, null")
    settled(opened, f"document.querySelector('details[data-made=steps][data-of=\"{at}\"] tbody')")
    cells = opened.run(
        f"[...document.querySelectorAll('details[data-made=steps][data-of=\"{at}\"] tbody tr')].map(e => e.cells[6].textContent)"
    )
    assert sum(len(cell.split(", ")) for cell in cells if cell) == len(found)


def test_keys_of_a_drawing(document: Document, opened: browser.Page) -> None:
    opened.run("document.querySelector('details[data-make=drawing]').open = true, null")
    settled(opened, "document.querySelector('svg.drawing')?.hasAttribute('viewBox')")
    opened.run("document.querySelector('svg.drawing').focus(), null")
    width = "document.activeElement.viewBox.baseVal.width"
    before = opened.run(width)
    key(opened, "+")
    assert opened.run(width) == pytest.approx(before / 2)
    key(opened, "n")
    settled(opened, "document.activeElement.querySelector('.box.lit.chosen')")
    assert opened.run("document.activeElement.nextElementSibling.textContent").startswith(
        document.graphs[0]["steps"][0]["name"].removeprefix("kernel ")
    )
    key(opened, "Enter")
    settled(opened, "document.activeElement.tagName == 'TR'")
    assert opened.run("document.activeElement.dataset.key") == "s0-0"


def test_old_graphs_and_large_ones_are_drawn(tmp_path: Path, chromium: browser.Browser) -> None:
    """A report before `inputs` has boxes without edges; a drawing says how many boxes it leaves out."""
    nodes = [{"name": f"n{i}", "operator": "aten.add", "of": "add", "place": ""} for i in range(700)]
    plain = {"event": "graph", "model": 0, "kind": "forward", "phases": {}, "memory": {}, "unfused": [], "code": ""}
    linked = [node | {"inputs": [i - 1] if i else []} for i, node in enumerate(nodes)]
    graphs = [
        {**plain, "number": 0, "nodes": nodes[:9], "steps": []},
        {**plain, "number": 1, "nodes": linked, "steps": []},
    ]
    (tmp_path / "old.html").write_text(page_of(Document.of([{"event": "start"}, *graphs])))
    opened = chromium.open(tmp_path / "old.html")
    opened.run("document.querySelectorAll('details[data-make=drawing]').forEach(d => d.open = true)")
    settled(opened, "document.querySelectorAll('svg.drawing').length == 2")
    count = "['.box', '.edge'].map(what => document.querySelectorAll('details[data-made=drawing]')[%d].querySelectorAll(what).length)"
    assert opened.run(count % 0) == [9, 0]
    assert opened.run(count % 1) == [300, 299]
    assert "The first 300 boxes of 700: " in opened.run(
        "document.querySelectorAll('details[data-made=drawing]')[1].textContent"
    )
    assert opened.complaints == []


# the search ----------------------------------------------------------------------------------------------------
def find(opened: browser.Page, text: str, kind: str = "") -> list[str]:
    """The links of the results."""
    opened.run(
        f"document.getElementById('kind').value = {kind!r}, document.getElementById('wanted').value = {text!r}, null"
    )
    opened.run("search()")
    return list(opened.run("[...document.querySelectorAll('#results a')].map(e => e.getAttribute('href'))"))


def test_a_guard_in_a_folded_part_is_found_and_opened(document: Document, opened: browser.Page) -> None:
    f, frame = 0, document.frames[0]
    each = frame["entry"]["each"]
    cheapest = min(each, key=lambda i: each[i])  # far below the rows that are visible at once
    text = frame["guards"][cheapest]["text"]
    opened.run("document.body.focus(), null")
    key(opened, "/")
    assert opened.run("document.activeElement.id") == "wanted"
    assert f"#g{f}-{cheapest}" in find(opened, text, "guards")
    opened.run(f"document.querySelector('#results a[href=\"#g{f}-{cheapest}\"]').click(), null")
    settled(opened, "document.activeElement.tagName == 'TR'")
    assert opened.run("document.activeElement.dataset.key") == f"g{f}-{cheapest}"
    assert opened.run("document.activeElement.closest('details').open") is True
    box = opened.run("(({top, bottom}) => [top, bottom])(document.activeElement.getBoundingClientRect())")
    assert 0 < box[0] < box[1] < 900  # in view


def test_everything_is_searched(document: Document, opened: browser.Page) -> None:
    graph = document.graphs[0]
    found = {
        kind: find(opened, text, kind)
        for kind, text in {
            "lines": 'print("a', "causes": "builtin-call print", "kernels": graph["steps"][0]["name"],
            "nodes": graph["nodes"][0]["name"], "frames": "program", "graphs": "backward",
        }.items()
    }  # fmt: skip
    assert f"#{line(2)}" in found["lines"] and "#A0" in found["causes"] and "#F1-0" in found["frames"]
    assert "#s0-0" in found["kernels"] and "#n0-0" in found["nodes"] and found["graphs"]
    assert find(opened, "no such text anywhere") == find(opened, "  ") == []
    everything = find(opened, "a")
    assert {link[1] for link in everything} >= set("LAgsnFG")
    for links in found.values():
        for link in links[:2]:
            assert opened.run(f"reveal({link[1:]!r}).then(found => found !== null && found !== undefined)") is True
    assert opened.complaints == []


def test_a_recompile_is_found(tmp_path: Path, chromium: browser.Browser) -> None:
    events: list[Any] = []
    compiled = pycompiler.compile(lambda x, text: x + len(text))
    with Recorder(events.append):
        for k in range(3):
            compiled(torch.ones(2), f"text {k}")
    (tmp_path / "page.html").write_text(page_of(Document.of(events)))
    opened = chromium.open(tmp_path / "page.html")
    assert find(opened, "text 1", "recompiles") == ["#R0", "#R1"]
    assert opened.run("reveal('R1').then(found => found.tagName)") == "TR"


# size ----------------------------------------------------------------------------------------------------------
LIMIT, LAYERS = 1_000_000, 40


def events_of_a_layer() -> list[dict[str, Any]]:
    """Some training steps of one layer."""
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x: Any) -> Any:
        loss = model(x).square().mean()
        print("a step")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    events: list[Any] = []
    with Recorder(events.append, costs=True):
        compiled = pycompiler.compile(step)
        for _ in range(4):
            compiled(torch.randn(2, 8, 16))
    pycompiler.reset()
    found: list[dict[str, Any]] = json.loads(json.dumps(events, default=str))
    return found


class Repeated:
    """The same events as of more layers: other indices in texts, other times."""

    def __init__(self, times: int) -> None:
        self.times, self.random = range(times), random.Random(0)

    def text(self, text: str, k: int) -> str:
        return re.sub(r"\d+(?=[\]'_,)])|(?<=_)\d+", lambda found: str(int(found[0]) + 100 * k), text)

    def texts(self, text: str | None) -> str:
        return "".join(self.text(text or "", k) for k in self.times)

    def row(self, row: dict[str, Any], k: int, *fields: str) -> dict[str, Any]:
        changed = {f: self.text(v, k) if isinstance(v := row[f], str) else [self.text(o, k) for o in v] for f in fields}
        return row | changed

    def numbers(self, found: list[float]) -> list[float]:
        return [round(ns * self.random.uniform(0.9, 1.1), 1) for _ in self.times for ns in found]

    def event(self, event: dict[str, Any]) -> dict[str, Any]:
        kind = event["event"]
        if kind == "frame":
            guards = [self.row(guard, k, "text", "source") for k in self.times for guard in event["guards"]]
            return event | {"guards": guards, "graph": self.texts(event["graph"])}
        if kind == "entry":
            known = [event["each"].get(str(i), 0.0) for i in range(max(map(int, event["each"]), default=-1) + 1)]
            return event | {"each": {str(i): ns for i, ns in enumerate(self.numbers(known))}}
        if kind == "graph":
            nodes, count = event["nodes"], len(event["nodes"])
            shifted = [
                self.row(node, k, "name") | {"inputs": [i + k * count for i in node["inputs"]]}
                for k in self.times for node in nodes
            ]  # fmt: skip
            steps = [self.row(step, k, "name", "operators") for k in self.times for step in event["steps"]]
            after = event["memory"].get("after", []) * len(self.times)
            return event | {"nodes": shifted, "steps": steps, "code": self.texts(event["code"])[:200_000],
                            "memory": event["memory"] | {"after": after}}  # fmt: skip
        if kind == "calls":
            return event | {"least": self.numbers(event["least"]), "total": self.numbers(event["total"])}
        if kind == "steps":
            return event | {"inner": [self.numbers(times) for times in event["inner"]]}
        return event


def test_forty_layers_weigh_less_than_a_megabyte() -> None:
    """A compile of 40 layers takes minutes: one layer is repeated."""
    events = events_of_a_layer()
    small = Document.of(events)
    repeated = Repeated(LAYERS)
    large = Document.of([repeated.event(event) for event in events])
    counts = [sum(len(frame["guards"]) for frame in found.frames) for found in (small, large)]
    assert counts[1] == LAYERS * counts[0] > 10_000
    size = len(page_of(large).encode())
    assert len(page_of(small).encode()) < size < LIMIT, size
