// Keeps the open page up to date. Without this script the page is complete, but it does not change by itself.
"use strict";
(() => {
  const main = document.querySelector("main[data-live]");
  const status = document.getElementById("live");
  if (!main || !status || !window.EventSource) return;

  // The least time between two reads of the page, in milliseconds.
  const pause = 1000;
  let reading = false, again = false, last = -pause;

  // parse returns the elements of a text of HTML.
  const parse = (html) => {
    const template = document.createElement("template");
    template.innerHTML = html;
    return template.content;
  };

  // keepFocus runs change and returns the focus to the element that replaces the focused one.
  const keepFocus = (change) => {
    const focused = document.activeElement;
    const id = focused && focused.id, href = focused && focused.getAttribute && focused.getAttribute("href");
    change();
    if (!focused || focused === document.body || focused.isConnected) return;
    const next = id ? document.getElementById(id)
      : href ? [...document.querySelectorAll("a[href]")].find((a) => a.getAttribute("href") === href) : null;
    if (next) next.focus({preventScroll: true});
  };

  // replacePart replaces an element if it has changed. Open details stay open.
  const replacePart = (old, next) => {
    const details = next.querySelectorAll("details");
    old.querySelectorAll("details").forEach((d, i) => { if (details[i]) details[i].open = d.open; });
    if (old.outerHTML !== next.outerHTML) keepFocus(() => old.replaceWith(next));
  };

  // showTimes says how long ago the times on the page are, by the server's clock. The function ago of the server does
  // the same.
  const skew = Date.parse(main.dataset.now) - Date.now();
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const showTimes = () => {
    for (const time of document.querySelectorAll("time")) {
      const seconds = (Date.now() + skew - Date.parse(time.dateTime)) / 1000;
      const [unit, length] = units.find((u) => Math.abs(seconds) >= u[1]) || ["", 1];
      const text = Math.floor(Math.abs(seconds) / length) + " " + unit;
      const says = !unit ? "now" : seconds < 0 ? "in " + text : text + " ago";
      if (time.textContent !== says) time.textContent = says;
    }
  };
  setInterval(showTimes, 1000);

  const read = async () => {
    if (reading) {
      again = true;
      return;
    }
    reading = true;
    const wait = last + pause - performance.now();
    if (wait > 0) await new Promise((done) => setTimeout(done, wait));
    again = false;
    last = performance.now();
    try {
      const answer = await fetch(location.href, {headers: {Accept: "text/html"}});
      const next = parse(await answer.text());
      for (const part of document.querySelectorAll("[data-part]")) {
        const found = next.getElementById(part.id);
        if (found) replacePart(part, found);
      }
    } catch (error) {
      again = true; // the server restarts or the network is gone
    }
    reading = false;
    if (again) read();
  };

  const say = (text, tone) => {
    if (status.textContent !== text) status.textContent = text;
    status.className = "live " + tone;
  };

  const source = new EventSource(main.dataset.live);
  source.onopen = () => say("Live", "good");
  source.onerror = () => say(source.readyState === EventSource.CLOSED
    ? "Not live: reload the page" : "Connecting again", "warn");
  source.addEventListener("stale", read);
  source.addEventListener("row", (event) => {
    const {id, html} = JSON.parse(event.data);
    const old = document.getElementById(id);
    if (old) replacePart(old, parse(html).firstElementChild);
  });
  source.addEventListener("entry", (event) => {
    const {id, html} = JSON.parse(event.data);
    const list = document.getElementById("entries");
    if (!list || document.getElementById(id)) return;
    list.prepend(parse(html).firstElementChild);
    while (list.children.length > 100) list.lastElementChild.remove();
  });
  addEventListener("pagehide", () => source.close());
})();
