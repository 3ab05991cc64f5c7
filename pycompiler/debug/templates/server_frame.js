// A second script of a served report: tells the outer page (`server.js`) the reader's place, and returns to it after an update.
"use strict";
if (parent !== window) {
  let used = false, due = 0;
  const headings = () => [...document.querySelectorAll("h2[id], h3[id]")];
  const top = heading => heading.getBoundingClientRect().top;
  function tell() {
    due = 0;
    const all = headings(), seen = all.find(heading => top(heading) >= 0 && top(heading) < innerHeight);
    const near = seen || all.filter(heading => top(heading) < 0).pop();  // rows above it may be added
    parent.postMessage({place: {
      hash: location.hash, moved: used || scrollY > 0, id: near ? near.id : "", offset: near ? -top(near) : scrollY,
    }}, "*");
  }
  const later = () => { due ||= setTimeout(tell, 100); };
  for (const kind of ["pointerdown", "keydown"]) addEventListener(kind, () => { used = true; later(); }, true);
  for (const kind of ["scroll", "hashchange"]) addEventListener(kind, later);
  addEventListener("message", event => {
    if (event.source !== parent || !event.data || !event.data.place) return;
    const {moved, id, offset} = event.data.place;
    if (!moved) return;
    const heading = id ? document.getElementById(id) : null;
    scrollTo(0, (heading ? scrollY + top(heading) : 0) + (offset || 0));
    later();
  });
  parent.postMessage({loaded: true}, "*");
}
