"""The report's page for its users: seen (light and dark, narrow), heard, by keyboard, and large.

It runs in a real browser if one is installed: Debian's package `chromium`, which CI installs.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler.debug.document import Document
from pycompiler.debug.events import Recorder
from pycompiler.debug.html_parts import OPEN, PART
from pycompiler.debug.page import page as page_of
from pycompiler.debug.page_data import decode, embedded, encode, packed
from tests.debug import browser
from tests.debug.structure import Structure, checked, whole

in_browser = pytest.mark.usefixtures("chromium")
CONTROLS = {"link", "DisclosureTriangle", "button", "searchbox", "combobox", "application"}
# The contrast of each element with text, by WCAG, against the nearest background.
CONTRASTS = """(() => {
  const parts = text => text.match(/[0-9.]+/g).map(Number);
  const light = rgb => rgb.slice(0, 3).map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const found = {};
  for (const e of document.body.querySelectorAll("*")) {
    if (e.tagName == "SCRIPT" || ![...e.childNodes].some(n => n.nodeType == 3 && n.textContent.trim())) continue;
    let at = e;
    while (at && (parts(getComputedStyle(at).backgroundColor)[3] ?? 1) == 0) at = at.parentElement;
    const [a, b] = [getComputedStyle(e).color, getComputedStyle(at || document.body).backgroundColor]
      .map(c => light(parts(c))).sort((a, b) => b - a);
    found[e.tagName + "." + e.className] = Math.min(found[e.tagName + "." + e.className] ?? 99, (a + 0.05) / (b + 0.05));
  }
  return found })()"""
FOCUS = """(() => { const e = document.activeElement, box = e.getBoundingClientRect(); return {
  tag: e.tagName, text: e.textContent.slice(0, 80), top: box.top + scrollY, seen: box.right > 0 && box.width > 0,
  outline: getComputedStyle(e).outlineStyle, at: [...document.querySelectorAll("*")].indexOf(e)} })()"""


NAMES = {f"name {i}": i for i in range(300)}


def program(x: Any, n: float) -> Any:
    y = (x @ x).softmax(-1) + len([k for k in NAMES if k])
    print("a step")
    if y.sum() < 0:
        y = -y
    return torch.fft.fft(y).real + y.mean(0) * n


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    events: list[Any] = []
    compiled = pycompiler.compile(program)
    with Recorder(events.append, costs=True):
        for n in (2, *[2.5] * 8):
            compiled(torch.ones(4, 4), n)
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page_of(Document.of(events)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def opened(page: Path, chromium: browser.Browser) -> browser.Page:
    return chromium.open(page)


def test_causes_and_costliest_guard_are_at_the_top(page: Path) -> None:
    text = page.read_text()
    checked(text)
    top = text[: text.index('id="program"')]
    line = program.__code__.co_firstlineno + 2
    assert "graph break [builtin-call]" in top and "graph break [data-dependent-jump]" in top
    order = [
        top.index(f"{head}</h2>")
        for head in ("What to do next", "A step of the program", "Costliest guards", "Costliest kernels")
    ]
    assert top.index("was compiled again") < order[1] and order == sorted(order)
    assert f'href="#L0-{line}"' in top and f'id="L0-{line}"' in text
    assert "<code>print(&#34;a step&#34;)</code>" in top  # the source line, not only its number
    assert f"program (from line {line + 3} on) was compiled again" in top
    assert "costliest guard</li>" in top
    assert text.count("the costliest guard: ") == 1  # at its line


def test_a_step_is_a_bar_and_a_timeline(page: Path) -> None:
    text = page.read_text()
    shares = text[text.index('id="shares"') : text.index('id="guards"')]
    assert shares.count("<rect") == 5 and 'id="timeline-place"' in shares and 'data-make="timeline"' in shares
    assert all(f'class="key {kind}"' in shares for kind in ("graph", "eager", "guards", "dispatch", "outside"))


def test_the_data_of_a_page_are_there_once() -> None:
    """Forty layers weigh less than ten times one: equal sources, stacks and names are shared."""
    stack = [{"file": "x.py", "line": 3, "function": "f", "text": "y = layer(x)"}] * 5
    data = [{"kind": "type_is", "text": f"type(L['x'][{k}]) is Linear", "stack": stack} for k in range(400)]
    encoded = encode({"guards": data, "short": [{"a": 1}, {"b": None}], "empty": []})
    assert decode(json.loads(json.dumps(encoded))) == {"guards": data, "short": [{"a": 1}, {"b": None}], "empty": []}
    assert len(packed(encoded)) < len(packed(data)) < len(json.dumps(data)) / 10


TEXTS = ["a[0].b[12] == 7", "a[1].b[13] == 7", "007 and 0", "-5", "1.50", "1" * 40, "", "٣", "Ünï 3", "<b>4</b>"]


@pytest.mark.parametrize("texts", [TEXTS, [*TEXTS, "a hole \x7f 3"], ["a"] * 5])
def test_texts_are_templates_and_numbers(texts: list[str]) -> None:
    rows = [{"text": text, "inputs": [0, k][: k % 3]} for k, text in enumerate(texts)]
    data = {"rows": rows, "code": "\n".join(texts * 200), "positions": [{"inputs": "no list", "text": "x"}] * 5}
    assert decode(json.loads(json.dumps(encode(data)))) == data
    if len(texts) == 5:
        assert encode(data)["data"]["rows"]["$columns"]["text"] == {
            "$texts": {"templates": ["a"], "of": [0] * 5, "numbers": []}
        }


@in_browser
def test_the_script_reads_the_pages_data(tmp_path: Path, chromium: browser.Browser) -> None:
    """The script's decoder and Python's agree on every value."""
    document = large(50)
    rows = document.data["graphs"][0]["nodes"]
    for k, row in enumerate(rows):
        row |= {"of": TEXTS[k % len(TEXTS)], "inputs": [k - 1, 0][: k % 3]}
    document.data["graphs"][0]["code"] = "\n".join(TEXTS * 300)
    (tmp_path / "page.html").write_text(page_of(document))
    read = json.loads(chromium.open(tmp_path / "page.html").run("data().then(JSON.stringify)"))
    assert read == json.loads(json.dumps(document.data)) == embedded((tmp_path / "page.html").read_text())


def test_the_costliest_step_of_many_is_at_the_top() -> None:
    """In the order of the graph it may be anywhere, also in folded parts."""
    document = large(1_000)
    document.data["graphs"][0]["calls"] = {"calls": 2, "rest": 9.0, "least": [float(n == 777) for n in range(1_000)]}
    top = page_of(document).partition('id="kernels"')[0]
    assert top.count("<code>kernel ") == 5
    assert "<code>kernel 777</code>" in top and ">x.py:777 in f</code>" in top
    assert "1 ns  forward graph 0 of model 0: kernel 777" in str(document)
    assert top.count('class="bar"') == 1  # a zero has no bar


def test_lines_behind_a_break_are_their_functions(page: Path) -> None:
    text = page.read_text()
    assert ">test_page.py:" in text and " in program</code>" in text and " in resume_in_program_at" not in _seen(text)


def _seen(text: str) -> str:
    """The page without parts that only a pointer, or a program, reads."""
    return re.sub(r' title="[^"]*"', "", text[: text.index('id="document"')])


# in a browser --------------------------------------------------------------------------------------------------
@in_browser
def test_nothing_is_fetched_and_nothing_complained_of(page: Path, opened: browser.Page) -> None:
    assert opened.requests == [page.resolve().as_uri()]
    assert opened.complaints == []
    assert opened.run("document.title").startswith("Compile report: ")


@in_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_can_be_read_in_light_and_dark(scheme: str, opened: browser.Page) -> None:
    opened.scheme(scheme)
    dark = opened.run("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
    assert dark == (scheme == "dark")
    contrasts = opened.run(CONTRASTS)
    assert len(contrasts) > 10
    assert {what: ratio for what, ratio in contrasts.items() if ratio < 4.5} == {}


@in_browser
@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_itself_does_not_scroll_sideways(width: int, opened: browser.Page) -> None:
    opened.resize(width, 900)
    try:
        opened.run("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert opened.run("document.documentElement.scrollWidth") <= width
    finally:
        opened.run("document.querySelectorAll('details').forEach(d => d.open = false)")
        opened.resize(1280, 900)


@in_browser
def test_what_is_heard_has_names(opened: browser.Page) -> None:
    opened.run("timeline()")  # it is drawn
    heard = opened.heard()
    roles = {role for role, _, _ in heard}
    assert {"main", "banner", "navigation", "region", "heading", "link", "table", "columnheader", "list"} <= roles
    assert {"search", "searchbox", "combobox", "application"} <= roles
    named = CONTROLS | {"heading", "region", "navigation", "RootWebArea"}
    assert [row for row in heard if row[0] in named and not row[1].strip()] == []
    levels = [told["level"] for role, _, told in heard if role == "heading"]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False))
    regions = [name for role, name, _ in heard if role == "region"]
    assert regions[:5] == [
        "What to do next",
        "A step of the program",
        "Costliest guards",
        "Costliest kernels",
        "The program",
    ]


@in_browser
def test_the_keyboard_is_enough(page: Path, chromium: browser.Browser) -> None:
    opened = chromium.open(page)
    opened.press("Tab")
    first = opened.run(FOCUS)
    assert (first["text"], first["seen"]) == ("Skip to the report", True)
    opened.press("Enter")
    assert opened.run("location.hash") == "#main"
    seen = []
    for _ in range(60):
        opened.press("Tab")
        seen.append(opened.run(FOCUS))
        if seen[-1]["tag"] == "SUMMARY":
            break
    order = [row["at"] for row in seen]
    assert order == sorted(order)  # in the page's reading order
    assert seen[0]["top"] > opened.run("document.querySelector('main').getBoundingClientRect().top + scrollY")
    assert {row["outline"] for row in seen} == {"solid"} and all(row["seen"] for row in seen)
    unfold = "document.activeElement.parentElement.open"
    assert opened.run(unfold) is False
    opened.press("Enter")
    assert opened.run(unfold) is True
    opened.press("Space")
    assert opened.run(unfold) is False


# size ----------------------------------------------------------------------------------------------------------
def large(operators: int) -> Document:
    """A graph of so many operators, each a kernel."""
    nodes = [
        {"name": f"n{i}", "operator": "aten.add", "of": "add", "place": f"x.py:{i} in f"} for i in range(operators)
    ]
    steps = [
        {"name": f"kernel {i}", "kind": "kernel", "operators": [f"n{i}"], "reads": 8, "writes": 8, "work": 1}
        for i in range(operators)
    ]
    graph = {
        "event": "graph", "number": 0, "model": 0, "kind": "forward", "phases": {"codegen": 1.0}, "nodes": nodes,
        "steps": steps, "unfused": [], "code": "x",
        "memory": {"after": [8] * operators, "peak": 8, "inputs": 8, "constants": 0, "library": 1},
    }  # fmt: skip
    return Document.of([{"event": "start", "program": "x.py"}, graph])


SIZES = pytest.mark.parametrize("operators", [400, 40_000])


@SIZES
def test_long_lists_are_compressed(operators: int) -> None:
    text = page_of(large(operators))
    if operators < 1_000:
        checked(text)
    assert (
        text.count('data-make="steps"') == text.count('data-make="operators"') == text.count('data-make="memory"') == 1
    )
    assert len(text) < 20 * operators + 100_000


@in_browser
@SIZES
def test_long_lists_unfold(operators: int, tmp_path: Path, chromium: browser.Browser) -> None:
    (tmp_path / "large.html").write_text(page_of(large(operators)))
    opened = chromium.open(tmp_path / "large.html")
    assert opened.height < 10_000  # folded parts take no space
    unfold(opened, "document.querySelector('details[data-make=steps]')")
    for k, last in ((0, False), (-1, True)):
        summary = f"[...document.querySelectorAll('#kernels ~ details details.part > summary')].at({k})"
        first = OPEN + PART * ((operators - OPEN - 1) // PART) if last else OPEN
        end = operators if last else min(operators, OPEN + PART)
        assert opened.run(f"{summary}.textContent") == f"{first + 1:,} to {end:,} of {operators:,}"
        before = opened.run("document.documentElement.scrollHeight")
        unfold(opened, f"{summary}.parentElement")
        assert opened.run("document.documentElement.scrollHeight") > before + 20 * (end - first)
        assert opened.run(f"{summary}.parentElement.querySelectorAll('tbody > tr').length") == end - first
        opened.run(f"{summary}.click()")


@in_browser
def test_long_lists_are_filtered(tmp_path: Path, chromium: browser.Browser) -> None:
    (tmp_path / "large.html").write_text(page_of(large(400)))
    opened = chromium.open(tmp_path / "large.html")
    unfold(opened, "document.querySelector('details[data-make=steps]')")
    put = "(e => { e.value = 'kernel 39'; e.dispatchEvent(new Event('input')) })(part.querySelector('input')), null"
    opened.run(put)
    assert opened.run("part.querySelector('.found caption').textContent") == "11 rows with “kernel 39”"


def unfold(opened: browser.Page, details: str) -> None:
    """Opens a folded part, and waits until it is filled."""
    opened.run(f"window.part = {details}, window.part.open = true, null")
    wait = "new Promise(done => { const look = () => part.children.length > 1 ? done(null) : setTimeout(look, 5); look() })"
    assert opened.run(wait) is None


@in_browser
def test_folded_tables_and_lines_open(page: Path, chromium: browser.Browser) -> None:
    opened = chromium.open(page)
    unfold(opened, "document.querySelector('details[data-make=guards]')")
    assert opened.run("part.querySelector('caption').textContent") == "Guards, costliest first"
    unfold(opened, "document.querySelector('details[data-make=generated]')")
    assert "pyc_prelude.h" in opened.run("part.querySelector('pre').textContent")
    unfold(opened, "document.querySelector('td.notes details[data-part]')")
    assert opened.run("part.querySelectorAll('li').length") > 0
    assert opened.complaints == []


NASTY = "\"><img src=x onerror=alert(1)><!--<script></script></td>'&lt;"


def hostile(value: Any) -> Any:
    """The same document, with markup in each string."""
    if isinstance(value, dict):
        return {
            key if key in FIELDS or NUMBER.fullmatch(key) else NASTY: item if key == "event" else hostile(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [hostile(item) for item in value]
    return NASTY if isinstance(value, str) else value


NUMBER = re.compile("-1|[0-9]+")  # of a frame or a graph; -1: compiled before the recorder began
FIELDS = frozenset(
    "event at thread name start seconds model graph function file line source number models inlined operators guards break "
    "kind text stack reason hint phases nodes operator of place steps reads writes work memory after peak inputs constants "
    "library unfused kernels why code node reasons frame tried call all each holds calls least total rest pycompiler torch "
    "python machine program pid hooked owner others source differences aspects seen root function outside before "
    "guards graph dispatch last id title steps inputs inner device".split()
)


def test_texts_of_a_trace_are_never_markup() -> None:
    """A trace may come from an untrusted source."""
    events: list[dict[str, Any]] = []
    fn = pycompiler.compile(program, dynamic=False)
    fn(torch.randn(4, 4), 2.0)
    with Recorder(events.append, costs=True):
        for size in (4, 4, 4, 5):
            fn(torch.randn(size, size), 2.0)
    pycompiler.reset()
    kept = [json.loads(json.dumps(event, default=str)) for event in events]
    for event in kept:
        event.pop("holds", None)
        if event["event"] == "steps":
            event["device"] = [["a kernel", 0.0, 5.0, 7]]
    plain, nasty = page_of(Document.of(kept)), page_of(Document.of([hostile(event) for event in kept]))
    read = Structure(whole(nasty))
    assert set(read.tags) <= {*Structure(whole(plain)).tags, "a", "details", "summary", "pre"}
    assert read.outside == []
    assert read.scripts == {"application/json": 1, "text/plain": 3, "": 1}
    assert "<!--" not in nasty
    assert sum(NASTY in text for text in read.texts) > 20
    lines = re.search(r'<script type="application/json" id="lines">(.*?)</script>', nasty, re.S)
    assert lines is not None
    assert "<" not in lines[1]
    assert embedded(nasty)["frames"][0]["function"] == NASTY


@in_browser
def test_texts_of_a_trace_are_never_markup_when_unfolded(tmp_path: Path, chromium: browser.Browser) -> None:
    """Folded parts, the timeline with a device's track, drawings and results of the search."""
    events: list[dict[str, Any]] = []
    compiled = pycompiler.compile(program)
    with Recorder(events.append, costs=True):
        for _ in range(6):
            compiled(torch.ones(4, 4), 2.0)
    kept = [hostile(json.loads(json.dumps(event, default=str))) for event in events]
    for event in kept:
        if event["event"] == "steps":
            event["device"] = [[NASTY, 0.0, 5e5, 7]]
    (tmp_path / "nasty.html").write_text(page_of(Document.of(kept)))
    opened = chromium.open(tmp_path / "nasty.html")
    opened.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    opened.run("document.getElementById('wanted').value = 'onerror', null")
    opened.run("search()")
    opened.run("light('s0-0')")
    wait = "new Promise(done => setTimeout(() => done(document.images.length), 300))"
    assert opened.run(wait) == 0
    counts = {
        what: opened.run(f"document.querySelectorAll({what!r}).length")
        for what in ("details table", "svg.drawing .box", "svg.line rect.device", "#results a", ".lit")
    }
    assert all(counts.values()), counts
    assert opened.complaints == []


def test_the_policy_runs_one_script(page: Path) -> None:
    text = page.read_text()
    policy = html.unescape(re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text)[0])
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    assert text.index("Content-Security-Policy") < text.index("<style>")


@in_browser
def test_the_policy_holds_in_a_browser(tmp_path: Path, page: Path, chromium: browser.Browser) -> None:
    """The content policy holds even if a string became an element."""
    path = tmp_path / "nasty.html"
    path.write_text(
        page.read_text().replace(
            "<main", "<img src=x onerror='document.title=1'><script>document.title=2</script><main", 1
        )
    )
    assert chromium.open(path).run("document.title").startswith("Compile report")
