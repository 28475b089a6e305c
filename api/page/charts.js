"use strict";
// Charts on canvases: lines over time, and a heat map of latencies. They are
// drawn anew with each snapshot and when the page or its colours change.

const charts = {
  color(name) { return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim(); },

  // begin clears a canvas at the screen's own resolution.
  begin(canvas) {
    const scale = window.devicePixelRatio || 1, w = canvas.clientWidth, h = canvas.clientHeight;
    if (canvas.width !== Math.round(w * scale) || canvas.height !== Math.round(h * scale)) {
      canvas.width = Math.round(w * scale);
      canvas.height = Math.round(h * scale);
    }
    const g = canvas.getContext("2d");
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.clearRect(0, 0, w, h);
    g.font = "11px system-ui, sans-serif";
    return { g, w, h };
  },

  // grid draws levels, a step apart, with their labels and returns how a value becomes a height.
  grid(g, w, h, most, text, step) {
    const top = Math.max(step, Math.ceil(most / step) * step);
    const y = v => h - 16 - (h - 32) * v / top;
    g.strokeStyle = charts.color("line");
    g.fillStyle = charts.color("soft");
    g.lineWidth = 1;
    for (let v = 0; v <= top + step / 2; v += step) {
      g.beginPath();
      g.moveTo(0, Math.round(y(v)) + .5);
      g.lineTo(w, Math.round(y(v)) + .5);
      g.stroke();
      g.fillText(text(v), 2, y(v) - 3);
    }
    return y;
  },

  // step is a round distance of about a third.
  step(most) {
    const p = Math.pow(10, Math.floor(Math.log10(Math.max(most, 1e-9) / 3)));
    for (const k of [1, 2, 5, 10]) if (k * p >= most / 3) return Math.max(k * p, 1);
    return 10 * p;
  },

  // bytesStep is the same for bytes, which people count by 1024.
  bytesStep(most) {
    let p = 1;
    while (p * 4 < most) p *= 2;
    return p;
  },

  // lines draws series of {name, values}, the last value at the right edge.
  lines(canvas, series, length, text, step) {
    const { g, w, h } = charts.begin(canvas);
    let most = 0;
    for (const s of series) for (const v of s.values) most = Math.max(most, v);
    const y = charts.grid(g, w, h, most, text, step(most)), dx = w / (length - 1);
    for (const s of series) {
      const at = i => w - (s.values.length - 1 - i) * dx;
      g.strokeStyle = g.fillStyle = charts.color(s.name);
      g.lineWidth = 1.6;
      g.beginPath();
      s.values.forEach((v, i) => i ? g.lineTo(at(i), y(v)) : g.moveTo(at(i), y(v)));
      g.stroke();
      if (s.values.length > 1) {
        g.lineTo(w, y(0));
        g.lineTo(at(0), y(0));
        g.globalAlpha = .1;
        g.fill();
        g.globalAlpha = 1;
      }
    }
    charts.times(g, w, h, length);
  },

  times(g, w, h, length) {
    g.fillStyle = charts.color("soft");
    for (let s = 30; s < length; s += 30) g.fillText("−" + s + " s", w - s * w / (length - 1) - 12, h - 3);
  },

  // heat draws columns of pairs [nanoseconds, requests]: rows are a quarter of an
  // octave, darkness is the share of the column's requests, by its logarithm.
  heat(canvas, columns, length) {
    const { g, w, h } = charts.begin(canvas);
    let low = Infinity, high = 0;
    for (const c of columns) for (const [ns] of c) { low = Math.min(low, ns); high = Math.max(high, ns); }
    if (!high) { low = 1e3; high = 1e6; }
    const row = ns => Math.log2(ns) * 4, bottom = row(low) - 3, top = row(high) + 3;
    const y = ns => h - 16 - (h - 20) * (row(ns) - bottom) / (top - bottom);
    const dx = w / length, dy = Math.max((h - 20) / (top - bottom), 2), rgb = charts.color("heat");
    columns.forEach((c, i) => {
      const x = w - (columns.length - i) * dx, total = c.reduce((a, [, n]) => a + n, 0);
      for (const [ns, n] of c) {
        g.fillStyle = `rgba(${rgb}, ${.12 + .88 * Math.log1p(n) / Math.log1p(total)})`;
        g.fillRect(x, y(ns), Math.ceil(dx), Math.ceil(dy));
      }
    });
    g.fillStyle = charts.color("soft");
    g.strokeStyle = charts.color("line");
    for (let ns = 1e3; ns <= high * 2; ns *= 10) {
      if (ns < low / 2) continue;
      g.beginPath();
      g.moveTo(0, y(ns) + .5);
      g.lineTo(w, y(ns) + .5);
      g.stroke();
      g.fillText(show.time(ns), 2, y(ns) - 3);
    }
    charts.times(g, w, h, length);
  },
};
