// The outer page of `report --serve`: asks for the report's version, and loads the report again when it has changed.
// A reader who has scrolled, clicked or typed gets a button instead, which keeps the place in the report.
"use strict";
const LEAST = 1000;  // milliseconds between two questions
const frame = document.getElementById("report"), state = document.getElementById("state"), show = document.getElementById("show");
let shown = "", latest = "", took = 0, loading = false;
let place = {hash: location.hash, moved: false};  // of the reader, as `server_frame.js` tells it

function load() {
  const start = performance.now();
  shown = latest;
  loading = true;
  show.hidden = true;
  frame.addEventListener("load", () => { took = performance.now() - start; loading = false; }, {once: true});
  frame.contentWindow.location.replace(new URL(`report.html?${encodeURIComponent(shown)}${place.hash}`, location.href));
}
addEventListener("message", event => {
  if (event.source !== frame.contentWindow || !event.data) return;
  if (event.data.loaded) frame.contentWindow.postMessage({place}, "*");  // the frame has no origin that could be named
  else if (event.data.place && !loading) {
    place = event.data.place;
    if (/^#[\w-]*$/.test(place.hash)) history.replaceState(null, "", place.hash);
    else place.hash = "";
  }
});
show.addEventListener("click", () => { load(); frame.focus(); });

async function ask() {
  try {
    const found = await (await fetch("version")).json();
    latest = found.version;
    if (state.textContent !== found.state) state.textContent = found.state;
    document.title = found.title;
    if (latest !== shown && !loading) {
      if (place.moved) show.hidden = false;
      else load();
    }
  } catch {
    state.textContent = "The server has ended; the page shows the last events that it sent.";
  }
  setTimeout(ask, Math.max(LEAST, 4 * took));
}
ask();
