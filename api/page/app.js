"use strict";
// What the page shows comes from /api/v1/disks, now and then, and from the
// stream of snapshots, once a second.

const keep = 120; // seconds of history

const show = {
  count(n) {
    if (n >= 1e6) return (n / 1e6).toPrecision(3) + " M";
    if (n >= 1e4) return (n / 1e3).toPrecision(3) + " k";
    return String(Math.round(n));
  },
  bytes(n) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let i = 0;
    while (n >= 1024 && i < units.length - 1) { n /= 1024; i++; }
    return (i ? n.toPrecision(3).replace(/\.0+$/, "") : Math.round(n)) + " " + units[i];
  },
  time(ns) {
    if (ns < 1e3) return ns + " ns";
    if (ns < 1e6) return +(ns / 1e3).toPrecision(3) + " µs";
    if (ns < 1e9) return +(ns / 1e6).toPrecision(3) + " ms";
    return +(ns / 1e9).toPrecision(3) + " s";
  },
  age(s) {
    s = Math.round(s);
    if (s < 120) return s + " s";
    if (s < 7200) return Math.round(s / 60) + " min";
    return Math.round(s / 3600) + " h";
  },
};

const $ = id => document.getElementById(id);
const el = (name, text, attributes) => {
  const e = document.createElement(name);
  if (text !== undefined) e.textContent = text;
  for (const k in attributes || {}) e.setAttribute(k, attributes[k]);
  return e;
};

const state = { disks: [], chosen: decodeURIComponent(location.hash.slice(1)), last: null, history: new Map(), token: "" };

// ask calls the API; a refusal becomes an error with its sentence.
async function ask(method, path, body) {
  const headers = state.token ? { Authorization: "Bearer " + state.token } : {};
  if (body) headers["Content-Type"] = "application/json";
  const r = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
  const answer = await r.json();
  if (r.status === 401 && await askToken()) return ask(method, path, body);
  if (!r.ok) throw new Error(answer.error ? answer.error.message : r.statusText);
  return answer;
}

async function askToken() {
  const given = await dialog({ title: "Token", text: "This daemon lets in only who shows its token (http-token).", label: "Token", secret: true });
  state.token = given ? given.value : "";
  return Boolean(given);
}

async function loadDisks() {
  state.disks = await ask("GET", "/api/v1/disks");
  if (!state.disks.some(d => d.name === state.chosen)) state.chosen = state.disks.length ? state.disks[0].name : "";
  listDisks();
  describe();
}

// follow reads the stream, and begins again when it breaks.
function follow() {
  const source = new EventSource("/api/v1/stream" + (state.token ? "?token=" + encodeURIComponent(state.token) : ""));
  source.onopen = () => say("live", false);
  source.onerror = () => say("the daemon does not answer; trying again", true);
  source.onmessage = e => take(JSON.parse(e.data));
}

function say(text, bad) {
  $("state").textContent = text;
  $("state").className = bad ? "bad" : "";
}

// take makes rates of the difference between two snapshots.
function take(s) {
  const before = state.last;
  state.last = s;
  const listed = state.disks.map(d => d.name).join("\n"), now = s.disks.map(d => d.name).join("\n");
  if (listed !== now) loadDisks().catch(complain);
  if (!before) return;
  const dt = (new Date(s.time) - new Date(before.time)) / 1000;
  if (dt <= 0) return;
  const old = new Map((before.exports || []).map(e => [e.name, e]));
  for (const d of s.disks) {
    const h = state.history.get(d.name) || { read: [], write: [], other: [], rbytes: [], wbytes: [], heat: [], ways: {}, rates: {}, inFlight: 0 };
    state.history.set(d.name, h);
    step(h, (s.exports || []).filter(e => e.disk === d.name), old, s, before, dt);
    h.inFlight = d.in_flight;
    h.size = d.size_bytes;
  }
  render();
}

function step(h, exports, old, now, before, dt) {
  const sums = { read: 0, write: 0, other: 0, rbytes: 0, wbytes: 0 }, heat = new Map();
  h.ways = {};
  for (const e of exports) {
    const was = old.get(e.name) || { operations: {}, paths: {} };
    let all = 0;
    for (const op in e.operations) {
      const a = e.operations[op], b = was.operations[op] || { requests: 0, bytes: 0 }, n = (a.requests - b.requests) / dt;
      sums[op === "read" || op === "write" ? op : "other"] += n;
      all += n;
      if (op === "read") sums.rbytes += (a.bytes - b.bytes) / dt;
      if (op === "write") sums.wbytes += (a.bytes - b.bytes) / dt;
    }
    h.rates[e.name] = all;
    for (const p in e.paths) {
      const n = e.paths[p] - (was.paths[p] || 0);
      if (n > 0) h.ways[p] = (h.ways[p] || 0) + n / dt;
    }
    for (const op in now.histograms[e.name] || {}) {
      const b = new Map(((before.histograms[e.name] || {})[op]) || []);
      for (const [ns, n] of now.histograms[e.name][op]) {
        const k = n - (b.get(ns) || 0);
        if (k > 0) heat.set(ns, (heat.get(ns) || 0) + k);
      }
    }
  }
  for (const k in sums) push(h[k], sums[k]);
  push(h.heat, [...heat]);
}

function push(list, x) {
  list.push(x);
  if (list.length > keep) list.shift();
}

const last = list => list.length ? list[list.length - 1] : 0;

function render() {
  const s = state.last;
  if (!s) return;
  totals(s);
  for (const b of document.querySelectorAll("#disks button")) {
    const h = state.history.get(b.dataset.name);
    if (h) b.querySelector(".num").textContent = show.count(last(h.read) + last(h.write) + last(h.other)) + "/s";
  }
  const disk = state.disks.find(d => d.name === state.chosen), h = state.history.get(state.chosen);
  if (!disk || !h) return;
  tiles(h);
  graph.draw($("graph"), disk, s.clients, name => h.rates[name] || 0);
  charts.lines($("iops"), ["other", "write", "read"].map(name => ({ name, values: h[name] })), keep, show.count, charts.step);
  charts.lines($("bytes"), [{ name: "write", values: h.wbytes }, { name: "read", values: h.rbytes }], keep, show.bytes, charts.bytesStep);
  charts.heat($("heat"), h.heat, keep);
  ways(h.ways);
  operations(s, disk);
  clients(s, disk);
}

function totals(s) {
  const rows = [["up", show.age(s.uptime_seconds)], ["disks", s.disks.length], ["clients", s.connections], ["in flight", s.in_flight], ["buffers", show.bytes(s.buffers.in_use_bytes)]];
  $("totals").replaceChildren(...rows.map(([k, v]) => { const d = el("div"); d.append(el("dt", k), el("dd", v)); return d; }));
}

// quantile of the last seconds, from the heat map's columns.
function quantile(h, q) {
  const sum = new Map();
  let total = 0;
  for (const c of h.heat.slice(-10)) for (const [ns, n] of c) { sum.set(ns, (sum.get(ns) || 0) + n); total += n; }
  let seen = 0;
  for (const [ns, n] of [...sum].sort((a, b) => a[0] - b[0])) if ((seen += n) >= q * total) return show.time(ns);
  return "–";
}

function tiles(h) {
  const rows = [["reads", show.count(last(h.read)) + "/s"], ["writes", show.count(last(h.write)) + "/s"], ["read", show.bytes(last(h.rbytes)) + "/s"], ["written", show.bytes(last(h.wbytes)) + "/s"],
    ["in flight", h.inFlight], ["p50, 10 s", quantile(h, .5)], ["p99, 10 s", quantile(h, .99)]];
  $("tiles").replaceChildren(...rows.map(([k, v]) => { const d = el("div", undefined, { class: "tile" }); d.append(el("span", k), el("b", v)); return d; }));
}

const meanings = {
  fast_lane: "fast lane", slow_lane: "blocking methods", as_is: "memory as it is", bounced_mem: "bounced: address", bounced_len: "bounced: length", bounced_segments: "bounced: elements",
  bounce_wait: "waited for buffer", padded: "padded", rmw: "read-modify-write", split: "split", retried: "retried", serialised: "serialised", flush_for_fua: "flush for FUA",
  zero_fallback: "zeroes written", linearised: "linearised", short: "finished slowly",
};

function ways(all) {
  const rows = Object.entries(all).sort((a, b) => b[1] - a[1]), most = Math.max(1, ...rows.map(r => r[1]));
  if (!rows.length) return $("paths").replaceChildren(el("p", "no requests", { class: "empty" }));
  $("paths").replaceChildren(...rows.map(([k, n]) => {
    const d = el("div", undefined, { class: "bar" });
    d.append(el("span", meanings[k] || k, { title: k }), el("meter", undefined, { min: 0, max: most, value: n }), el("span", show.count(n) + "/s", { class: "num" }));
    return d;
  }));
}

function row(cells, kind, numbers) {
  const tr = el("tr");
  cells.forEach((c, i) => tr.append(el(kind, c, i >= numbers ? { class: "num" } : {})));
  return tr;
}

function operations(s, disk) {
  const rows = [row(["operation", "requests", "amount", "errors", "p50", "p99", "p99.9", "max"], "th", 1)];
  for (const e of (s.exports || []).filter(e => e.disk === disk.name)) {
    for (const op in e.operations) {
      const o = e.operations[op];
      rows.push(row([op + (disk.exports.length + (disk.vhost_user || []).length > 1 ? " · " + e.name : ""), show.count(o.requests), show.bytes(o.bytes), o.errors, show.time(o.p50_ns), show.time(o.p99_ns), show.time(o.p99_9_ns), show.time(o.max_ns)], "td", 1));
    }
  }
  $("ops").replaceChildren(...rows);
}

function clients(s, disk) {
  const names = new Set(disk.exports.map(e => e.name)), rows = [];
  for (const c of s.clients) if (names.has(c.export) || c.export === "" && disk.exports.some(e => e.default)) rows.push(row([c.peer, c.export || "(default)", c.tls ? "TLS" : "plain", c.in_flight, show.bytes(c.held_bytes)], "td", 3));
  for (const f of disk.front_ends || []) if (f.connected) rows.push(row([f.peer, f.socket, f.writeback ? "writeback" : "writethrough", f.queues.reduce((a, q) => a + q.in_flight, 0), "–"], "td", 3));
  $("clients").replaceChildren(row(["who", "where", "how", "in flight", "memory"], "th", 3), ...(rows.length ? rows : [row(["nobody is connected", "", "", "", ""], "td", 3)]));
}

function listDisks() {
  const word = $("filter").value.toLowerCase();
  $("disks").replaceChildren(...state.disks.filter(d => (d.name + d.path).toLowerCase().includes(word)).map(d => {
    const li = el("li"), b = el("button", undefined, { type: "button", "data-name": d.name, "aria-current": String(d.name === state.chosen) });
    b.append(el("b", d.name), el("span", "", { class: "num" }), el("small", d.path), el("small", show.bytes(d.size_bytes)));
    b.onclick = () => choose(d.name);
    li.append(b);
    return li;
  }));
}

function choose(name) {
  state.chosen = name;
  history.replaceState(null, "", "#" + encodeURIComponent(name));
  listDisks();
  describe();
  render();
}

function describe() {
  const d = state.disks.find(d => d.name === state.chosen);
  $("name").textContent = d ? d.name : "no disk";
  if (!d) return;
  $("about").textContent = [d.path, show.bytes(d.size_bytes) + " (" + d.size_bytes + " bytes)", d.read_only ? "read-only" : "", d.throttle ? "limits: " + d.throttle : ""].filter(Boolean).join(" · ");
  $("why").replaceChildren(...(d.nodes || []).flatMap(n => {
    const list = el("ul");
    for (const s of n.explain || []) list.append(el("li", s));
    list.append(el("li", `alignment: reads ${n.read_align}, writes ${n.write_align}, memory ${n.mem_align} bytes`));
    return [el("h4", n.driver + (n.doc ? ": " + n.doc : "")), list];
  }));
}

// dialog asks for a value, and gives null where the person thinks better of it.
function dialog(o) {
  const d = $("ask");
  $("ask-title").textContent = o.title;
  $("ask-text").textContent = o.text;
  $("ask-label").textContent = o.label || "";
  $("ask-value").parentElement.hidden = !o.label;
  $("ask-value").type = o.secret ? "password" : "text";
  $("ask-value").value = o.value || "";
  $("ask-check-row").hidden = !o.check;
  $("ask-check-text").textContent = o.check || "";
  $("ask-check").checked = false;
  d.returnValue = "cancel";
  d.showModal();
  return new Promise(done => d.addEventListener("close", () => done(d.returnValue === "ok" ? { value: $("ask-value").value.trim(), checked: $("ask-check").checked } : null), { once: true }));
}

function toast(text, bad) {
  const t = $("toast");
  t.textContent = text;
  t.className = bad ? "bad" : "";
  t.hidden = false;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => { t.hidden = true; }, 8000);
}
const complain = e => toast(e.message, true);

const actions = {
  async flush(d, path) {
    if (await dialog({ title: "Flush " + d.name + "?", text: "Everything written so far is made durable. That can take as long as the storage does." })) return ask("POST", path + "/flush?wait=10s");
  },
  async resize(d, path) {
    const a = await dialog({ title: "Resize " + d.name, text: "It has " + d.size_bytes + " bytes. Virtual machines are told at once, NBD clients when they connect again.", label: "New size (20G, 512M, bytes)", value: show.bytes(d.size_bytes).replace(" ", ""), check: "It may shrink: what is behind the new end is lost" });
    if (a) return ask("POST", path + "/resize?wait=10s", { size: a.value.replace(/iB$/, ""), shrink: a.checked });
  },
  async throttle(d, path) {
    const a = await dialog({ title: "Limits of " + d.name, text: "Requests and bytes a second, as in --throttle. In force at once.", label: "Limits (iops-total=1000,bps-total=100M)", value: "" });
    if (a) return ask("PUT", path + "/throttle?wait=10s", { limits: a.value });
  },
};

async function act(name) {
  const d = state.disks.find(d => d.name === state.chosen);
  if (!d) return;
  try {
    const op = await actions[name](d, "/api/v1/disks/" + encodeURIComponent(d.name));
    if (!op) return;
    toast(op.state === "running" ? "it still runs: operation " + op.id : op.result || "done");
    await loadDisks();
  } catch (e) { complain(e); }
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  render();
}

function start() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  theme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));
  const flip = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  $("theme").onclick = flip;
  $("filter").oninput = listDisks;
  for (const b of document.querySelectorAll("[data-action]")) b.onclick = () => act(b.dataset.action);
  $("ask-cancel").onclick = () => $("ask").close("cancel");
  addEventListener("resize", render);
  addEventListener("keydown", e => {
    if (e.target.matches("input") || $("ask").open) return;
    const i = state.disks.findIndex(d => d.name === state.chosen);
    if (e.key === "/") { e.preventDefault(); $("filter").focus(); }
    if (e.key === "t") flip();
    if (e.key === "j" && i + 1 < state.disks.length) choose(state.disks[i + 1].name);
    if (e.key === "k" && i > 0) choose(state.disks[i - 1].name);
  });
  loadDisks().then(follow).catch(complain);
}
start();
