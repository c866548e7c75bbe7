// Resumable uploads (tus 1.0). What an interrupted upload has sent is kept on the server: after a lost connection or a
// restart of the server it goes on by itself; after a reload, when the same files are chosen again.
(() => {
  "use strict";
  const form = document.getElementById("form"), drop = document.getElementById("drop");
  const files = document.getElementById("files"), list = document.getElementById("list");
  const told = document.getElementById("told"), collection = document.getElementById("collection");
  if (!form) return;
  const URL_ = "/api/v1/uploads", PIECE = 8 << 20, SMALL = 1 << 20, AT_ONCE = 4, LISTED = 200, KEEP = "penstock-upload:";
  const token = document.body.dataset.csrf || "";
  const queue = [];
  let running = 0, done = 0, failed = 0, total = 0;

  const headers = (more) => ({ "Tus-Resumable": "1.0.0", ...(token ? { "X-CSRF-Token": token } : {}), ...more });
  const encoded = (text) => btoa(String.fromCharCode(...new TextEncoder().encode(text)));
  const key = (job) => `${KEEP}${job.collection}/${job.path}/${job.file.size}/${job.file.lastModified}`;
  const sleep = (ms) => new Promise((resume) => setTimeout(resume, ms));
  const summary = () => {
    told.textContent = `${done} of ${total} uploaded` + (failed ? `, ${failed} refused` : "") +
      (done + failed === total ? "." : " …");
  };

  class Refused extends Error {}

  const explain = async (answer) => {
    try { const body = await answer.json(); return body.detail || body.error || answer.statusText; } catch { return answer.statusText; }
  };
  const check = async (answer) => {
    if (answer.ok) return answer;
    const passing = [408, 409, 423, 425, 429].includes(answer.status) || answer.status >= 500;
    const error = passing ? new Error(await explain(answer)) : new Refused(await explain(answer));
    error.status = answer.status;
    error.wait = Number(answer.headers.get("Retry-After")) * 1000;
    throw error;
  };

  const create = async (job) => {
    const about = { filename: job.file.name, relativePath: job.path, filetype: job.file.type || "application/octet-stream" };
    if (job.collection) about.collection = job.collection;
    const metadata = Object.entries(about).map(([name, value]) => `${name} ${encoded(value)}`).join(",");
    const whole = job.file.size <= SMALL;
    const answer = await check(await fetch(URL_, {
      method: "POST", body: whole ? job.file : null,
      headers: headers({
        "Upload-Length": String(job.file.size), "Upload-Metadata": metadata,
        ...(whole ? { "Content-Type": "application/offset+octet-stream" } : {}),
      }),
    }));
    if (whole) return null;
    localStorage.setItem(key(job), answer.headers.get("Location"));
    return answer.headers.get("Location");
  };

  const offset = async (location) => {
    const answer = await check(await fetch(location, { method: "HEAD", headers: headers() }));
    return Number(answer.headers.get("Upload-Offset"));
  };

  const send = async (job) => {
    let location = localStorage.getItem(key(job)), at = 0;
    if (location) {
      try { at = await offset(location); } catch (error) {
        if (!(error instanceof Refused)) throw error;
        localStorage.removeItem(key(job));
        location = null;
      }
    }
    if (!location) location = await create(job);
    while (location && at < job.file.size) {
      const piece = job.file.slice(at, at + PIECE);
      const answer = await check(await fetch(location, {
        method: "PATCH", body: piece,
        headers: headers({ "Content-Type": "application/offset+octet-stream", "Upload-Offset": String(at) }),
      }));
      at = Number(answer.headers.get("Upload-Offset"));
      job.show(at);
    }
    localStorage.removeItem(key(job));
  };

  const work = async (job) => {
    for (let attempt = 0; ; attempt += 1) {
      try { await send(job); done += 1; job.end("✓ accepted"); return; } catch (error) {
        if (error instanceof Refused) { failed += 1; localStorage.removeItem(key(job)); job.end(`✗ ${error.message}`); return; }
        job.say(`waiting: ${error.message || "no connection"}`);
        await sleep(error.wait || Math.min(15000, 500 * 2 ** Math.min(attempt, 5)) * (0.5 + Math.random()));
      }
    }
  };

  const next = () => {
    while (running < AT_ONCE && queue.length) {
      running += 1;
      work(queue.shift()).finally(() => { running -= 1; summary(); next(); });
    }
  };

  const add = (file, path) => {
    const job = { file, path: path || file.name, collection: collection.value, show() {}, say() {}, end() {} };
    total += 1;
    const row = document.createElement("div"), name = document.createElement("span");
    const bar = document.createElement("progress"), state = document.createElement("span");
    row.className = "file";
    name.textContent = job.path;
    bar.max = Math.max(1, file.size);
    bar.value = 0;
    bar.setAttribute("aria-label", job.path);
    state.textContent = "waiting";
    row.append(name, bar, state);
    job.show = (bytes) => { bar.value = bytes; state.textContent = `${Math.floor(100 * bytes / bar.max)} %`; };
    job.say = (text) => { state.textContent = text; };
    // Rows of accepted files are removed when the list is long, so that ten thousand files stay fast.
    job.end = (text) => { bar.value = bar.max; state.textContent = text; if (text[0] === "✓" && list.children.length > LISTED) row.remove(); };
    list.append(row);
    queue.push(job);
  };

  const entries = async (entry, prefix) => {
    if (entry.isFile) { add(await new Promise((ok, no) => entry.file(ok, no)), prefix + entry.name); return; }
    const reader = entry.createReader();
    for (;;) {
      const some = await new Promise((ok, no) => reader.readEntries(ok, no));
      if (!some.length) return;
      for (const one of some) await entries(one, `${prefix}${entry.name}/`);
    }
  };

  const start = () => { summary(); next(); };
  drop.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", async (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    const dropped = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.() || item.getAsFile());
    for (const entry of dropped) {
      if (entry instanceof File) add(entry, entry.name);
      else if (entry) await entries(entry, "");
    }
    start();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    for (const file of files.files) add(file, file.webkitRelativePath || file.name);
    files.value = "";
    start();
  });
  files.addEventListener("change", () => form.requestSubmit());
  addEventListener("beforeunload", (event) => { if (running) event.preventDefault(); });

  const unfinished = Object.keys(localStorage).filter((name) => name.startsWith(KEEP)).length;
  if (unfinished) told.textContent = `${unfinished} uploads were interrupted. Choose the same files again: they go on where they stopped.`;
})();
