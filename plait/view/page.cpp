#include "plait/view/page.h"

namespace plait {

const std::string_view kPageHead = R"page(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>Plait: time lines of a step</title>
<style>
  :root { --ink: #1a1a1a; --soft: #5c5c5c; --line: #d4d4d4; --paper: #ffffff; }
  * { box-sizing: border-box; }
  html, body { margin: 0; height: 100%; background: var(--paper); color: var(--ink); font: 13px/1.4 system-ui, sans-serif; }
  body { display: flex; flex-direction: column; }
  header { padding: 8px 12px; border-bottom: 1px solid var(--line); display: flex; flex-wrap: wrap; gap: 6px 14px; align-items: center; }
  header h1 { font-size: 14px; margin: 0; }
  button { font: inherit; padding: 2px 9px; border: 1px solid #8a8a8a; border-radius: 4px; background: #f6f6f6; color: inherit; cursor: pointer; }
  button[aria-pressed=true] { background: #dbe9f5; border-color: #0072b2; }
  button:focus-visible, canvas:focus-visible { outline: 3px solid #0072b2; outline-offset: -2px; }
  .key { display: inline-flex; align-items: center; gap: 4px; color: var(--soft); }
  .key canvas { border: 0; }
  #scroll { flex: 1; overflow-y: auto; position: relative; }
  #view { display: block; width: 100%; cursor: grab; }
  #view.drag { cursor: grabbing; }
  #tip { position: fixed; pointer-events: none; background: #1a1a1a; color: #fff; padding: 5px 8px; border-radius: 4px; white-space: pre; display: none; z-index: 2; }
  footer { border-top: 1px solid var(--line); padding: 4px 12px; color: var(--soft); }
  kbd { border: 1px solid var(--line); border-radius: 3px; padding: 0 4px; background: #f6f6f6; }
  #say { position: absolute; left: -9999px; }
</style>
</head>
<body>
<header>
  <h1 id="heading">Plait</h1>
  <span role="toolbar" aria-label="view">
    <button id="fit" title="show everything (0)">fit</button>
    <button id="in" title="zoom in (+)">+</button>
    <button id="out" title="zoom out (-)">&minus;</button>
    <button id="arrows" aria-pressed="true" title="messages between ranks (a)">messages</button>
    <button id="memory" aria-pressed="true" title="what each rank holds (m)">memory</button>
    <button id="overlay" aria-pressed="false" title="lay measured steps over simulated ones (o)">overlay</button>
    <button id="same" aria-pressed="false" title="stretch every step to the same length (s)">same length</button>
  </span>
  <span id="legend"></span>
</header>
<div id="scroll"><canvas id="view" tabindex="0" role="img" aria-label="time lines; use the arrow keys to move, plus and minus to zoom, n and p to step through the ops"></canvas></div>
<footer>drag or <kbd>&larr;</kbd> <kbd>&rarr;</kbd> move &middot; wheel or <kbd>+</kbd> <kbd>&minus;</kbd> zoom &middot; <kbd>0</kbd> fit &middot; <kbd>n</kbd> <kbd>p</kbd> next and previous op, <kbd>&uarr;</kbd> <kbd>&darr;</kbd> rank &middot; <kbd>a</kbd> messages <kbd>m</kbd> memory <kbd>o</kbd> overlay <kbd>s</kbd> same length</footer>
<div id="tip" role="tooltip"></div>
<div id="say" aria-live="polite"></div>
<script>
const DATA = )page";

const std::string_view kPageScript = R"page(;
'use strict';
const KINDS = [['F', 'forward', '#56b4e9'], ['B', 'input gradient', '#e69f00'], ['W', 'weight gradient', '#009e73'], ['BW', 'both gradients', '#d55e00'], ['R', 'recompute', '#cc79a7']];
const LABEL = 64, RIGHT = 12, BAR = 20, GAP = 4, MEMORY = 22, HEAD = 30, AXIS = 22, SPAN = 11, DETAIL = 2 * SPAN + 3;
const $ = id => document.getElementById(id);
const canvas = $('view'), pen = canvas.getContext('2d'), tip = $('tip'), scroller = $('scroll');
const on = { arrows: true, memory: true, overlay: false, same: false };

// Columns of DATA become typed arrays; per rank the bars are a range, sorted by start.
const lines = DATA.map(d => {
  const n = d.bars.length / 7, t = { ...d, n, start: new Float64Array(n), end: new Float64Array(n), rank: new Int32Array(n), kind: new Uint8Array(n), stage: new Int32Array(n), batch: new Int32Array(n), slice: new Int32Array(n) };
  for (let i = 0; i < n; ++i) {
    const b = d.bars, at = 7 * i;
    t.rank[i] = b[at]; t.start[i] = b[at + 1] / d.scale; t.end[i] = b[at + 2] / d.scale; t.kind[i] = b[at + 3]; t.stage[i] = b[at + 4]; t.batch[i] = b[at + 5]; t.slice[i] = b[at + 6];
  }
  t.first = new Int32Array(d.ranks + 1).fill(n);
  for (let i = n - 1; i >= 0; --i) t.first[t.rank[i]] = i;
  for (let r = d.ranks - 1; r >= 0; --r) if (t.first[r] === n) t.first[r] = t.first[r + 1];
  t.length = d.makespan / d.scale;
  t.chunks = Array.from({ length: d.ranks }, () => new Set());
  for (let i = 0; i < n; ++i) t.chunks[t.rank[i]].add(t.stage[i]);
  t.chunks = t.chunks.map(s => [...s].sort((a, b) => a - b));
  t.most = Math.max(1, ...t.chunks.map(c => c.length));
  let top = 0;
  for (const c of d.memory) for (let i = 1; i < c.length; i += 2) top = Math.max(top, c[i]);
  t.top = top;
  t.detail = d.names.length ? DETAIL : 0;  // parts and kernels below the bars
  return t;
});
const longest = Math.max(...lines.map(t => t.length), 1e-12);
let from = 0, span = longest, picked = null;  // picked: {line, bar}

const label = (t, i) => {
  const chunk = t.chunks[t.rank[i]].indexOf(t.stage[i]);
  let kind = KINDS[t.kind[i]][0];
  if (t.most === 2 && chunk === 1) kind = kind.toLowerCase();
  return (t.most > 2 ? t.stage[i] : '') + kind + t.batch[i] + (t.slices > 1 ? '.' + t.slice[i] : '');
};
const number = x => { const s = Number(x.toPrecision(6)); return Math.abs(s) >= 1e6 || (s !== 0 && Math.abs(s) < 1e-3) ? s.toExponential(3) : String(s); };
const bytes = (t, b) => { if (t.memoryUnit !== 'bytes') return b + (b === 1 ? ' stash' : ' stashes'); const u = ['B', 'KiB', 'MiB', 'GiB', 'TiB']; let k = 0; while (b >= 1024 && k < 4) { b /= 1024; ++k; } return Number(b.toPrecision(3)) + ' ' + u[k]; };
const unit = t => (t.unit ? ' ' + t.unit : '');
const stretch = t => (on.same && t.length > 0 ? longest / t.length : 1);

// Which time lines are panels, and what lies over each.
function panels() {
  const list = [];
  for (const t of lines) {
    const below = list[list.length - 1];
    if (on.overlay && t.measured && below && below.base.ranks === t.ranks) below.over.push(t); else list.push({ base: t, over: [] });
  }
  return list;
}
let layout = [];
function place() {
  let y = 6;
  layout = panels().map(p => {
    const lane = BAR + GAP + p.base.detail + (on.memory && p.base.top > 0 ? MEMORY : 0) + p.over.length * (BAR / 2 + 2);
    const panel = { ...p, y, lane, lanes: y + HEAD };
    y += HEAD + lane * p.base.ranks + AXIS;
    return panel;
  });
  return y + 6;
}
let wide = canvas.clientWidth;  // as of the last drawing: to ask the canvas for every bar is slow
const width = () => wide;
const x = (t, time) => LABEL + (time * stretch(t) - from) / span * (width() - LABEL - RIGHT);
const timeAt = px => from + (px - LABEL) / (width() - LABEL - RIGHT) * span;

function hatch(color, background) {
  const tile = document.createElement('canvas'); tile.width = tile.height = 6;
  const c = tile.getContext('2d');
  c.fillStyle = background; c.fillRect(0, 0, 6, 6); c.strokeStyle = color; c.beginPath(); c.moveTo(-1, 7); c.lineTo(7, -1); c.stroke();
  return pen.createPattern(tile, 'repeat');
}
function dots() {
  const tile = document.createElement('canvas'); tile.width = tile.height = 5;
  const c = tile.getContext('2d');
  c.fillStyle = '#f0e442'; c.fillRect(0, 0, 5, 5); c.fillStyle = '#1a1a1a'; c.fillRect(1, 1, 2, 2);
  return pen.createPattern(tile, 'repeat');
}
const IDLE = hatch('#c4c4c4', '#f5f5f5'), WAIT = dots();

// First index in [lo, hi) whose end lies behind time.
function seek(t, lo, hi, time) { while (lo < hi) { const mid = (lo + hi) >> 1; if (t.end[mid] <= time) lo = mid + 1; else hi = mid; } return lo; }

function bars(t, rank, y, height, outlined) {
  const k = stretch(t), a = from / k, b = (from + span) / k, end = t.first[rank + 1];
  let last = -1;
  for (let i = seek(t, t.first[rank], end, a); i < end && t.start[i] < b; ++i) {
    const left = Math.max(x(t, t.start[i]), LABEL), right = Math.min(x(t, t.end[i]), width() - RIGHT);
    if (right - left < 1 && Math.floor(right) === last) continue;  // thinner than a pixel, and that pixel is drawn
    last = Math.floor(right);
    pen.fillStyle = KINDS[t.kind[i]][2];
    pen.fillRect(left, y, Math.max(right - left - (right - left > 3 ? 0.7 : 0), 0.8), height);
    if (outlined && right - left > 3) { pen.strokeStyle = '#1a1a1a'; pen.lineWidth = 0.7; pen.strokeRect(left + 0.5, y + 0.5, right - left - 1.5, height - 1); }
    if (right - left > 16 && height >= 10) {
      const text = label(t, i);
      if (pen.measureText(text).width < right - left - 3) { pen.fillStyle = '#000'; pen.fillText(text, (left + right) / 2, y + height / 2 + 0.5); }
    }
  }
}

// Parts above, kernels below; a colour for each name.
function spans(t, rank, y) {
  const list = t.spans[rank], last = [-1, -1];
  for (let i = 0; i < list.length; i += 4) {
    const a = x(t, list[i] / t.scale), b = x(t, list[i + 1] / t.scale), kind = list[i + 2], top = y + kind * (SPAN + 1);
    if (b < LABEL || a > width() - RIGHT) continue;
    const left = Math.max(a, LABEL), right = Math.min(b, width() - RIGHT);
    if (right - left < 1 && Math.floor(right) === last[kind]) continue;
    last[kind] = Math.floor(right);
    pen.fillStyle = `hsl(${list[i + 3] * 137.5 % 360} 45% ${kind ? 78 : 86}%)`;
    pen.fillRect(left, top, Math.max(right - left - (right - left > 3 ? 0.7 : 0), 0.8), SPAN);
    const text = t.names[list[i + 3]];
    if (right - left > 16 && pen.measureText(text).width < right - left - 3) { pen.fillStyle = '#000'; pen.fillText(text, (left + right) / 2, top + SPAN / 2 + 0.5); }
  }
}
function spanAt(t, rank, kind, time) {
  const list = t.spans[rank], at = time * t.scale;
  for (let i = 0; i < list.length; i += 4) if (list[i + 2] === kind && list[i] <= at && at < list[i + 1]) return { text: `${t.names[list[i + 3]]}\nlasts ${number((list[i + 1] - list[i]) / t.scale)}${unit(t)}` };
  return null;
}

let pending = false;
function redraw() { if (!pending) { pending = true; requestAnimationFrame(draw); } }
function draw() {
  pending = false;
  const began = performance.now(), height = place(), ratio = window.devicePixelRatio || 1;
  canvas.style.height = height + 'px';
  wide = canvas.clientWidth;
  const w = Math.round(width() * ratio), h = Math.round(height * ratio);
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width(), height);
  const shown = scroller.scrollTop, bottom = shown + scroller.clientHeight;
  for (const p of layout) {
    const t = p.base, left = LABEL, right = width() - RIGHT;
    pen.textBaseline = 'middle'; pen.textAlign = 'left'; pen.fillStyle = '#1a1a1a'; pen.font = 'bold 13px system-ui, sans-serif';
    pen.fillText([t, ...p.over].map(l => l.title).join('  +  '), 8, p.y + 15);
    pen.font = '12px system-ui, sans-serif'; pen.textAlign = 'right'; pen.fillStyle = '#5c5c5c';
    pen.fillText([t, ...p.over].map(l => `makespan ${number(l.length)}${unit(l)}, bubble ${(100 * l.bubble).toFixed(1)} %` + (l.top ? `, peak ${bytes(l, l.top)}` : '')).join('   |   '), right, p.y + 15);
    for (let r = 0; r < t.ranks; ++r) {
      const y = p.lanes + r * p.lane;
      if (y + p.lane < shown || y > bottom) continue;
      pen.font = '11px system-ui, sans-serif'; pen.textAlign = 'left'; pen.fillStyle = '#1a1a1a';
      pen.fillText('rank ' + r, 8, y + BAR / 2);
      pen.save(); pen.beginPath(); pen.rect(left, y, right - left, p.lane); pen.clip();
      pen.fillStyle = IDLE; pen.fillRect(x(t, 0), y, x(t, t.length) - x(t, 0), BAR);
      pen.fillStyle = WAIT;
      const waits = t.waits[r];
      for (let i = 0; i < waits.length; i += 2) { const a = x(t, waits[i] / t.scale), b = x(t, waits[i + 1] / t.scale); if (b - a >= 0.5 && b > left && a < right) pen.fillRect(a, y + BAR / 4, b - a, BAR / 2); }
      pen.textAlign = 'center';
      bars(t, r, y, BAR, false);
      let yy = y + BAR + 2;
      if (t.detail) { spans(t, r, yy); yy += t.detail; }
      for (const over of p.over) { bars(over, r, yy, BAR / 2, true); yy += BAR / 2 + 2; }
      if (on.memory && t.top > 0 && t.memory[r]) {
        const base = yy + MEMORY - 4, curve = t.memory[r], up = (MEMORY - 6) / t.top;
        pen.beginPath(); pen.moveTo(x(t, 0), base);
        let held = 0, column = -1, most = 0;  // of one pixel column only the most counts
        for (let i = 0; i < curve.length; i += 2) {
          const cx = x(t, curve[i] / t.scale);
          if (cx > right) break;
          if (Math.floor(cx) === column) { most = Math.max(most, curve[i + 1]); held = curve[i + 1]; continue; }
          if (most > held) pen.lineTo(column, base - most * up);
          pen.lineTo(cx, base - held * up);
          held = most = curve[i + 1];
          column = Math.floor(cx);
          pen.lineTo(cx, base - held * up);
        }
        pen.lineTo(x(t, t.length), base - held * up); pen.lineTo(x(t, t.length), base); pen.closePath();
        pen.fillStyle = 'rgba(0, 114, 178, 0.18)'; pen.fill(); pen.strokeStyle = '#0072b2'; pen.lineWidth = 0.8; pen.stroke();
      }
      pen.restore();
    }
    if (on.arrows) {
      pen.save(); pen.beginPath(); pen.rect(left, p.lanes, right - left, p.lane * t.ranks); pen.clip();
      pen.strokeStyle = 'rgba(0, 0, 0, 0.45)'; pen.lineWidth = 0.8; pen.beginPath();
      const per = (right - left) / span, k = stretch(t);
      let drawn = 0;
      for (let i = 0; i < t.arrows.length; i += 4) {
        const a = x(t, t.arrows[i + 2] / t.scale), b = x(t, t.arrows[i + 3] / t.scale);
        if (b < left || a > right) continue;
        if (++drawn > 4000) break;
        const down = t.arrows[i + 1] > t.arrows[i], y1 = p.lanes + t.arrows[i] * p.lane + (down ? BAR : 0), y2 = p.lanes + t.arrows[i + 1] * p.lane + (down ? 0 : BAR);
        pen.moveTo(a, y1); pen.lineTo(b, y2);
        const angle = Math.atan2(y2 - y1, b - a);
        pen.moveTo(b, y2); pen.lineTo(b - 5 * Math.cos(angle - 0.4), y2 - 5 * Math.sin(angle - 0.4)); pen.moveTo(b, y2); pen.lineTo(b - 5 * Math.cos(angle + 0.4), y2 - 5 * Math.sin(angle + 0.4));
      }
      if (drawn <= 4000) pen.stroke();
      pen.restore();
    }
    const y = p.lanes + p.lane * t.ranks + 2;
    pen.strokeStyle = '#8a8a8a'; pen.fillStyle = '#5c5c5c'; pen.lineWidth = 1; pen.textAlign = 'center'; pen.font = '11px system-ui, sans-serif';
    pen.beginPath(); pen.moveTo(left, y); pen.lineTo(right, y);
    const k = stretch(t), raw = span / k / 10, power = Math.pow(10, Math.floor(Math.log10(raw))), step = [1, 2, 5, 10].map(f => f * power).find(s => s >= raw);
    for (let at = Math.ceil(from / k / step) * step; at <= (from + span) / k; at += step) { const px = x(t, at); pen.moveTo(px, y); pen.lineTo(px, y + 4); pen.fillText(number(at), px, y + 12); }
    pen.stroke();
  }
  if (picked) mark();
  document.body.dataset.drawMs = (performance.now() - began).toFixed(1);
  document.body.dataset.ready = '1';
}

// Where a bar is drawn.
function boxOf(t, i) {
  for (const p of layout) {
    const y = p.lanes + t.rank[i] * p.lane;
    if (p.base === t) return { y, height: BAR };
    const at = p.over.indexOf(t);
    if (at >= 0) return { y: y + BAR + 2 + p.base.detail + at * (BAR / 2 + 2), height: BAR / 2 };
  }
  return null;
}
function mark() {
  const { line: t, bar: i } = picked, box = boxOf(t, i);
  if (!box) return;
  pen.strokeStyle = '#000'; pen.lineWidth = 2.5;
  pen.strokeRect(Math.max(LABEL, x(t, t.start[i])), box.y, Math.max(2, x(t, t.end[i]) - x(t, t.start[i])), box.height);
}
function words(t, i) {
  const kind = KINDS[t.kind[i]];
  const before = i > t.first[t.rank[i]] ? t.start[i] - t.end[i - 1] : 0;
  return `${label(t, i)}  ${kind[1]}\nrank ${t.rank[i]}, stage ${t.stage[i]}, micro-batch ${t.batch[i]}` + (t.slices > 1 ? `, slice ${t.slice[i]}` : '') +
    `\n${number(t.start[i])} to ${number(t.end[i])}${unit(t)}, lasts ${number(t.end[i] - t.start[i])}` + (before > 1e-12 ? `\nidle before it: ${number(before)}` : '') + `\n${t.title}`;
}
function hit(px, py) {
  for (const p of layout) {
    const r = Math.floor((py - p.lanes) / p.lane);
    if (r < 0 || r >= p.base.ranks || py < p.lanes) continue;
    let dy = py - p.lanes - r * p.lane, t = dy <= BAR ? p.base : null;
    p.over.forEach((o, n) => { const top = BAR + 2 + p.base.detail + n * (BAR / 2 + 2); if (dy >= top && dy <= top + BAR / 2) t = o; });
    if (!t && dy > BAR + 2 && dy < BAR + 2 + p.base.detail) return spanAt(p.base, r, dy < BAR + 2 + SPAN ? 0 : 1, timeAt(px) / stretch(p.base));
    if (!t) {
      if (on.memory && p.base.memory[r]) { let held = 0; const now = timeAt(px) / stretch(p.base) * p.base.scale, c = p.base.memory[r]; for (let i = 0; i < c.length && c[i] <= now; i += 2) held = c[i + 1]; return { text: `rank ${r} holds ${bytes(p.base, held)}` }; }
      return null;
    }
    const time = timeAt(px) / stretch(t), i = seek(t, t.first[r], t.first[r + 1], time);
    if (i < t.first[r + 1] && t.start[i] <= time) return { line: t, bar: i, text: words(t, i) };
    const w = t.waits[r];
    for (let k = 0; k < w.length; k += 2) if (w[k] / t.scale <= time && time < w[k + 1] / t.scale) return { text: `rank ${r} waits for a message on the wire\n${number((w[k + 1] - w[k]) / t.scale)}${unit(t)}` };
    return time >= 0 && time <= t.length ? { text: `rank ${r} is idle` } : null;
  }
  return null;
}
function show(text, px, py) {
  tip.textContent = text; tip.style.display = 'block';
  tip.style.left = Math.min(px + 14, window.innerWidth - tip.offsetWidth - 8) + 'px';
  tip.style.top = Math.min(py + 14, window.innerHeight - tip.offsetHeight - 8) + 'px';
}
function clamp() { span = Math.min(Math.max(span, longest * 1e-6), longest * 1.02); from = Math.min(Math.max(from, -0.01 * longest), Math.max(-0.01 * longest, longest * 1.01 - span)); }
function zoom(factor, at) { const fixed = at === undefined ? from + span / 2 : at; from = fixed - (fixed - from) * factor; span *= factor; clamp(); redraw(); }
function fit() { from = 0; span = longest; redraw(); }
function toggle(name) { on[name] = !on[name]; $(name).setAttribute('aria-pressed', String(on[name])); redraw(); }
function pick(t, i) {
  picked = { line: t, bar: i };
  const k = stretch(t), a = t.start[i] * k, b = t.end[i] * k;
  if (a < from || b > from + span) { from = (a + b) / 2 - span / 2; clamp(); }
  place();
  const box = boxOf(t, i), rect = canvas.getBoundingClientRect();
  if (box) {
    if (box.y < scroller.scrollTop || box.y + BAR > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = box.y - scroller.clientHeight / 2;
    show(words(t, i), rect.left + x(t, t.end[i]), canvas.getBoundingClientRect().top + box.y + box.height);
  }
  $('say').textContent = words(t, i).replace(/\n/g, ', ');
  redraw();
}
function step(by) { const t = picked ? picked.line : lines[0]; if (t.n) pick(t, picked ? Math.min(Math.max(picked.bar + by, 0), t.n - 1) : 0); }
function other(by) {
  if (!picked) return step(0);
  const t = picked.line, r = t.rank[picked.bar] + by, all = layout.flatMap(p => [p.base, ...p.over]);
  if (r >= 0 && r < t.ranks) { if (t.first[r + 1] > t.first[r]) pick(t, Math.min(seek(t, t.first[r], t.first[r + 1], t.start[picked.bar]), t.first[r + 1] - 1)); return; }
  const next = all[all.indexOf(t) + by];
  if (next && next.n) pick(next, by > 0 ? 0 : next.first[next.ranks - 1]);
}

canvas.addEventListener('wheel', e => { if (e.ctrlKey || e.metaKey || !e.shiftKey) { e.preventDefault(); zoom(Math.exp(e.deltaY * 0.0015), timeAt(e.offsetX)); } }, { passive: false });
let drag = null;
canvas.addEventListener('pointerdown', e => { drag = { px: e.clientX, from }; canvas.setPointerCapture(e.pointerId); canvas.classList.add('drag'); });
canvas.addEventListener('pointermove', e => {
  if (drag && e.buttons) { from = drag.from - (e.clientX - drag.px) / (width() - LABEL - RIGHT) * span; clamp(); redraw(); return; }
  const found = hit(e.offsetX, e.offsetY);
  if (found) show(found.text, e.clientX, e.clientY); else tip.style.display = 'none';
});
canvas.addEventListener('pointerup', e => { canvas.classList.remove('drag'); if (drag && Math.abs(e.clientX - drag.px) < 3) { const found = hit(e.offsetX, e.offsetY); if (found && found.line) pick(found.line, found.bar); } drag = null; });
canvas.addEventListener('pointerleave', () => { tip.style.display = 'none'; });
scroller.addEventListener('scroll', redraw);
window.addEventListener('resize', redraw);
document.addEventListener('keydown', e => {
  if (e.ctrlKey || e.metaKey || e.altKey) return;
  const act = { ArrowLeft: () => { from -= span / 10; clamp(); redraw(); }, ArrowRight: () => { from += span / 10; clamp(); redraw(); }, ArrowUp: () => other(-1), ArrowDown: () => other(1), '+': () => zoom(0.8), '=': () => zoom(0.8), '-': () => zoom(1.25), 0: fit, n: () => step(1), p: () => step(-1), a: () => toggle('arrows'), m: () => toggle('memory'), o: () => toggle('overlay'), s: () => toggle('same'), Escape: () => { picked = null; tip.style.display = 'none'; redraw(); } }[e.key];
  if (act) { e.preventDefault(); act(); }
});
$('fit').onclick = fit; $('in').onclick = () => zoom(0.8); $('out').onclick = () => zoom(1.25);
for (const name of ['arrows', 'memory', 'overlay', 'same']) $(name).onclick = () => toggle(name);
$('heading').textContent = lines.length === 1 ? lines[0].title : lines.length + ' steps';
const kinds = new Set(); for (const t of lines) for (let i = 0; i < t.n; ++i) kinds.add(t.kind[i]);
const swatch = (paint, text) => {
  const key = document.createElement('span'), c = document.createElement('canvas'); key.className = 'key'; c.width = 16; c.height = 12;
  const g = c.getContext('2d'); g.fillStyle = paint; g.fillRect(0, 0, 16, 12); key.append(c, document.createTextNode(text + '\u2002')); $('legend').append(key);
};
KINDS.forEach((k, i) => { if (kinds.has(i)) swatch(k[2], k[0] + ' ' + k[1]); });
swatch(IDLE, 'idle'); swatch(WAIT, 'exposed transfer');
if (lines.some(t => t.measured) && lines.some(t => !t.measured)) { toggle('overlay'); toggle('same'); }
draw();
</script>
</body>
</html>
)page";

}  // namespace plait
