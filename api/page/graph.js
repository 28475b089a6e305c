"use strict";
// The block graph as a picture: clients, exports, and the nodes of one disk,
// from left to right, with what goes over each edge.

const graph = {
  make(name, attributes, text) {
    const e = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const k in attributes) e.setAttribute(k, attributes[k]);
    if (text !== undefined) e.textContent = text;
    return e;
  },

  // short cuts a path at its beginning and a sentence at its end.
  short(s, n) {
    if (s.length <= n) return s;
    return s.startsWith("/") ? "…" + s.slice(1 - n) : s.slice(0, n - 1) + "…";
  },

  // columns puts what there is into columns of boxes; from says which box of
  // the column before leads to each.
  columns(disk, clients, rate) {
    const ways = [];
    for (const e of disk.exports || []) ways.push({ title: "NBD " + (e.name || "(default)"), sub: e.read_only ? "read-only" : "", key: e.name });
    for (const v of disk.vhost_user || []) ways.push({ title: "vhost-user", sub: v.socket, key: "vhost-user:" + v.socket });
    const who = [];
    ways.forEach((w, i) => {
      for (const c of clients.filter(c => c.export === w.key || c.export === "" && disk.exports.some(e => e.default && e.name === w.key))) {
        who.push({ title: "NBD client", sub: c.peer, rate: c.in_flight + " in flight", live: c.in_flight > 0, to: i });
      }
      for (const f of (disk.front_ends || []).filter(f => f.connected && "vhost-user:" + f.socket === w.key)) {
        const n = f.queues.reduce((a, q) => a + q.in_flight, 0);
        who.push({ title: "virtual machine", sub: `${f.queues.length} queues, ${f.peer || ""}`, rate: n + " in flight", live: n > 0, to: i });
      }
      w.rate = show.count(rate(w.key)) + "/s";
      w.live = rate(w.key) > 0;
      w.to = 0;
    });
    const shown = who.slice(0, 8);
    if (who.length > 8) shown.push({ title: `${who.length - 8} more clients`, sub: "", rate: "", to: 0 });
    const cols = [shown, ways];
    (disk.nodes || []).forEach((n, i) => cols.push([{ title: n.driver, sub: i === disk.nodes.length - 1 ? n.filename : n.doc, disk: i === 0, to: 0, live: ways.some(w => w.live), rate: "" }]));
    return cols.filter(c => c.length);
  },

  draw(place, disk, clients, rate) {
    const cols = graph.columns(disk, clients, rate), bw = 190, bh = 44, gap = 74, vgap = 14;
    const rows = Math.max(...cols.map(c => c.length)), w = cols.length * bw + (cols.length - 1) * gap + 4, h = rows * (bh + vgap);
    const svg = graph.make("svg", { viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": "block graph of " + disk.name });
    svg.style.maxWidth = w + "px";
    const at = (ci, i) => ({ x: 2 + ci * (bw + gap), y: (h - cols[ci].length * (bh + vgap)) / 2 + i * (bh + vgap) + vgap / 2 });
    cols.forEach((col, ci) => col.forEach((b, i) => {
      const p = at(ci, i);
      if (ci + 1 < cols.length) {
        const q = at(ci + 1, Math.min(b.to, cols[ci + 1].length - 1)), x1 = p.x + bw, y1 = p.y + bh / 2, y2 = q.y + bh / 2;
        svg.append(graph.make("path", { d: `M${x1} ${y1}C${x1 + gap / 2} ${y1} ${q.x - gap / 2} ${y2} ${q.x} ${y2}`, "stroke-width": b.live ? 2.2 : 1.2, class: b.live ? "live" : "" }));
        if (b.rate) svg.append(graph.make("text", { x: x1 + 6, y: y1 - 5, class: "rate" }, b.rate));
      }
      const box = graph.make("g", { class: b.disk ? "disk" : "" });
      box.append(graph.make("title", {}, b.title + " " + (b.sub || "")));
      box.append(graph.make("rect", { x: p.x, y: p.y, width: bw, height: bh, rx: 7 }));
      box.append(graph.make("text", { x: p.x + 10, y: p.y + (b.sub ? 18 : 27) }, graph.short(b.title, 24)));
      if (b.sub) box.append(graph.make("text", { x: p.x + 10, y: p.y + 34, class: "sub" }, graph.short(b.sub, 28)));
      svg.append(box);
    }));
    place.replaceChildren(svg);
  },
};
