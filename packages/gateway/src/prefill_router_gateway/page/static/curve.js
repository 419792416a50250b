// Draws the accuracy-cost curve: cost to the right, accuracy upwards.

import { cut } from "./charts.js";
import { shape } from "./dom.js";
import { dollars, number, percent, tick } from "./format.js";

const LEFT = 46;
const RIGHT = 14;
const TOP = 26;
const BOTTOM = 40;
const HEIGHT = 280;
export const COLUMNS = [{ name: "At" }, { name: "Accuracy", num: true }, { name: "Dollars per 1,000", num: true }];

/** The curve, every target alone, the current lam and the selected one. */
export function drawCurve({ curve, now, then }, width) {
  const all = [...curve.points, ...curve.singles];
  const scale = scales(all, width);
  const line = curve.points.map((p, i) => `${i ? "L" : "M"}${scale.x(p.cost).toFixed(1)} ${scale.y(p.accuracy).toFixed(1)}`).join("");
  const parts = [...axes(scale, width), shape("path", { class: "curve", d: line }),
    ...singles(curve.singles, [now, then].filter(Boolean), scale, width)];
  const marks = [[now, "now", 5, "current"], [then, "then", 6, "selected"]];
  for (const [point, kind, size, what] of marks) {
    if (!point) continue;
    parts.push(shape("circle", { class: kind, cx: scale.x(point.cost), cy: scale.y(point.accuracy), r: size },
      shape("title", null, `lam ${number(point.lam)}, ${what}`)));
  }
  const rows = [
    ...marks.filter(([point]) => point).map(([p, , , what]) => [`lam ${number(p.lam)}, ${what}`, percent(p.accuracy), dollars(p.cost)]),
    ...sample(curve.points).map((p) => [`lam ${number(p.lam)}`, percent(p.accuracy), dollars(p.cost)]),
    ...curve.singles.map((s) => [`all ${s.target}`, percent(s.accuracy), dollars(s.cost)]),
  ];
  return { parts, height: HEIGHT, desc: described(curve, now), columns: COLUMNS, rows };
}

function described(curve, now) {
  const [first, last] = [curve.points[0], curve.points[curve.points.length - 1]];
  const ends = `From ${percent(first.accuracy)} at ${dollars(first.cost)} per 1,000 requests with lam 0, to ${percent(last.accuracy)} at ${dollars(last.cost)} with lam 1.`;
  return now ? `${ends} Current: lam ${number(now.lam)}, ${percent(now.accuracy)} at ${dollars(now.cost)}.` : ends;
}

/** About twenty rows, evenly spaced over lam. */
function sample(points) {
  const step = Math.max(1, Math.ceil(points.length / 20));
  return points.filter((_, i) => i % step === 0 || i === points.length - 1);
}

/** The scales; the cost axis is logarithmic where costs differ widely. */
function scales(points, width) {
  const costs = points.map((p) => p.cost).filter((cost) => cost > 0);
  const [least, most] = [Math.min(...costs), Math.max(...costs)];
  const log = costs.length === points.length && most / least > 12;
  const f = log ? Math.log10 : (value) => value;
  const [from, to] = log ? [f(least) - 0.06, f(most) + 0.06] : [0, (costs.length ? most : 1) * 1.05];
  const rates = points.map((p) => p.accuracy);
  const room = Math.max(0.02, Math.max(...rates) - Math.min(...rates));
  const bottom = Math.max(0, Math.min(...rates) - 0.08 * room);
  const top = Math.min(1, Math.max(...rates) + 0.12 * room);
  const share = (value, a, b) => (b > a ? (value - a) / (b - a) : 0.5);
  return {
    log, from, to, bottom, top,
    x: (cost) => LEFT + share(f(cost), from, to) * (width - LEFT - RIGHT),
    y: (rate) => HEIGHT - BOTTOM - share(rate, bottom, top) * (HEIGHT - TOP - BOTTOM),
  };
}

function axes(scale, width) {
  const down = HEIGHT - BOTTOM;
  const parts = [];
  for (const rate of ticks(scale.bottom, scale.top, 5)) {
    const y = scale.y(rate);
    parts.push(shape("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }),
      shape("text", { class: "soft", x: LEFT - 6, y: y + 4, "text-anchor": "end" }, percent(rate, 0)));
  }
  const costs = scale.log ? decades(scale.from, scale.to) : ticks(scale.from, scale.to, 5);
  for (const cost of costs) {
    const x = scale.x(cost);
    parts.push(shape("line", { class: "grid", x1: x, x2: x, y1: TOP, y2: down }),
      shape("text", { class: "soft", x, y: down + 16, "text-anchor": "middle" }, tick(cost)));
  }
  parts.push(shape("line", { class: "axis", x1: LEFT, x2: width - RIGHT, y1: down, y2: down }),
    shape("text", { class: "soft", x: width - RIGHT, y: HEIGHT - 4, "text-anchor": "end" },
      `estimated cost per 1,000 requests${scale.log ? ", logarithmic" : ""}`),
    shape("text", { class: "soft", x: 0, y: 12 }, "expected accuracy"));
  return parts;
}

function ticks(from, to, about) {
  const rough = (to - from) / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const first = Math.ceil(from / step);
  return Array.from({ length: Math.floor(to / step) - first + 1 }, (_, i) => (first + i) * step);
}

function decades(from, to) {
  const out = [];
  for (let power = Math.floor(from); power <= to; power += 1) {
    for (const m of to - from > 1.6 ? [1] : [1, 2, 5]) {
      const value = Math.log10(m) + power;
      if (value >= from && value <= to) out.push(10 ** value);
    }
  }
  return out;
}

/** Every target alone; its name only where it overlaps nothing. */
function singles(all, marks, scale, width) {
  const boxes = [...all, ...marks].map((s) => box(scale.x(s.cost) - 5, scale.y(s.accuracy) - 5, 10, 10));
  return all.flatMap((single) => {
    const [x, y] = [scale.x(single.cost), scale.y(single.accuracy)];
    const dot = shape("circle", { class: "single", cx: x, cy: y, r: 4 }, shape("title", null, single.target));
    const name = cut(single.target, 150);
    const long = 6.3 * name.length;
    const places = [[x + 8, y + 4], [x - 8 - long, y + 4], [x - long / 2, y - 9], [x - long / 2, y + 17],
      [x - long + 4, y - 9], [x - long + 4, y + 18]];
    const free = places.map(([left, base]) => ({ left, base, at: box(left, base - 11, long, 13) }))
      .find(({ left, base, at }) => left >= LEFT && left + long <= width && base < HEIGHT - BOTTOM && base > 10 &&
        boxes.filter((other) => overlap(at, other)).length === 0);
    if (!free) return [dot];
    boxes.push(free.at);
    return [dot, shape("text", { class: "soft label", x: free.left, y: free.base }, name)];
  });
}

function box(x, y, width, height) {
  return { x, y, right: x + width, down: y + height };
}

function overlap(a, b) {
  return a.x < b.right && b.x < a.right && a.y < b.down && b.y < a.down;
}
