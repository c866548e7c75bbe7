// Keeps the page up to date: when something changes, the page is fetched again, and its part #live is replaced.
// Keys: j and k move in a list, Enter opens, x selects, r loads again, / goes to the first field.
(() => {
  "use strict";
  const mark = document.getElementById("live-mark");
  const say = (text) => { if (mark && mark.textContent !== text) mark.textContent = text; };
  // A page that takes long is fetched less often, so that an open page costs the server less than 1 % of a core.
  const LEAST_MS = 1000, MOST_MS = 15000, SHARE = 100;
  let source = null, waiting = false, last = 0, pause = LEAST_MS;

  const busy = () => {
    const live = document.getElementById("live");
    const focus = document.activeElement;
    return !live || live.querySelector("input[type=checkbox]:checked") !== null ||
      (focus && live.contains(focus) && /^(INPUT|SELECT|TEXTAREA)$/.test(focus.tagName)) || String(getSelection()).length > 0;
  };

  // The element with this id of the page at an address; null if there is none.
  const part = async (address, id) => {
    const answer = await fetch(address, { headers: { "X-Live": "1" } });
    if (!answer.ok || answer.redirected) return null;
    return new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(id);
  };

  const refresh = async () => {
    waiting = false;
    if (busy() || document.hidden) return;
    const began = performance.now();
    try {
      const fresh = await part(location.href, "live");
      last = performance.now();
      pause = Math.min(MOST_MS, Math.max(LEAST_MS, SHARE * (last - began)));
      const old = document.getElementById("live");
      if (!fresh || !old || busy() || fresh.innerHTML === old.innerHTML) return;
      // What was opened stays open.
      old.querySelectorAll("details").forEach((one, i) => {
        const other = fresh.querySelectorAll("details")[i];
        if (other && one.open) other.open = true;
      });
      const index = rows().findIndex((row) => row.getAttribute("data-selected") === "true");
      const focused = old.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      old.replaceWith(fresh);
      if (index >= 0) select(index, false);
      if (focused) fresh.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    } catch { say("◌ lost"); }
  };

  const changed = () => {
    if (waiting) return;
    waiting = true;
    setTimeout(refresh, Math.max(50, last + pause - performance.now()));
  };

  const open = () => {
    if (source || !document.getElementById("live") || !document.body.dataset.events) return;
    source = new EventSource(document.body.dataset.events);
    source.onopen = () => { say("● live"); };
    source.onerror = () => say("◌ lost, connecting again");
    for (const kind of ["changed", "progress", "deleted", "reset"]) source.addEventListener(kind, changed);
  };

  const close = () => { source?.close(); source = null; };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { close(); say("○ paused"); } else { open(); changed(); }
  });
  addEventListener("pagehide", close);
  // Some parts change without an event of a document.
  setInterval(() => {
    const every = Number(document.querySelector("#live[data-poll]")?.dataset.poll) * 1000;
    if (every && !document.hidden && performance.now() - last >= every) changed();
  }, 1000);
  if (!document.hidden) open();

  // A link to another part of the same page, such as a chunk: only that part is loaded.
  const follow = async (address, id, keep) => {
    const fresh = await part(address, id), old = document.getElementById(id);
    if (!fresh || !old) { location.assign(address); return; }
    const places = [...old.querySelectorAll("[tabindex]")].map((one) => one.scrollTop);
    old.replaceWith(fresh);
    if (keep) fresh.querySelectorAll("[tabindex]").forEach((one, i) => { one.scrollTop = places[i] || 0; });
    fresh.querySelector("[aria-current]")?.focus({ preventScroll: true });
    reveal();
  };
  const reveal = () => {
    // Scrolls only the box of the text, not the page.
    const box = document.querySelector(".page-text"), passage = document.getElementById("passage");
    if (box && passage) box.scrollTop = passage.offsetTop - box.offsetTop - 40;
  };
  document.addEventListener("click", async (event) => {
    const link = event.target.closest?.("a[data-part]");
    if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    const page = new URL(link.href).searchParams.get("page"), now = new URL(location.href).searchParams.get("page") || "1";
    history.pushState({ part: link.dataset.part }, "", link.href);
    try { await follow(link.href, link.dataset.part, page === now); } catch { location.reload(); }
  });
  addEventListener("popstate", () => location.reload());
  addEventListener("DOMContentLoaded", () => {
    reveal();
    // On a narrow screen, the bar of pages is wider than the screen.
    const nav = document.querySelector("header nav"), here = nav?.querySelector("[aria-current]");
    if (here && nav.scrollWidth > nav.clientWidth) nav.scrollLeft = here.offsetLeft - nav.offsetLeft - 40;
  });

  const rows = () => [...document.querySelectorAll("[data-row]")];
  const select = (index, scroll = true) => {
    const all = rows();
    all.forEach((row, i) => row.setAttribute("data-selected", String(i === index)));
    if (scroll) all[index]?.scrollIntoView({ block: "nearest" });
  };
  document.addEventListener("keydown", (event) => {
    const field = event.target.tagName;
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA)$/.test(field)) return;
    if (field === "SELECT" && event.key !== "/") return;
    const all = rows();
    const at = all.findIndex((row) => row.getAttribute("data-selected") === "true");
    if (event.key === "j" && all.length) select(Math.min(at + 1, all.length - 1));
    else if (event.key === "k" && all.length) select(Math.max(at - 1, 0));
    else if (event.key === "Enter" && at >= 0 && event.target === document.body) all[at].querySelector("a")?.click();
    else if (event.key === "x" && at >= 0) all[at].querySelector("input[type=checkbox]")?.click();
    else if (event.key === "r") location.reload();
    else if (event.key === "/") document.querySelector("main input:not([type=hidden]):not([type=checkbox])")?.focus();
    else return;
    event.preventDefault();
  });
})();
