// The last hour, minute by minute: the number of requests and their outcomes.

import { get } from "./api.js";
import { Chart } from "./charts.js";
import { byId, shape } from "./dom.js";
import { clock, count, dollars } from "./format.js";

const MINUTES = 60;
const HEIGHT = 96;
const FOOT = 20;
const COLUMNS = [{ name: "Minute" }, { name: "Requests", num: true }, { name: "Without a forecast", num: true },
  { name: "Failed", num: true }, { name: "Dollars", num: true }];

export class Timeline {
  #chart = new Chart("Requests by minute", draw);
  #last = null;

  async update() {
    this.#last = await get("timeline");
    if (!this.#chart.node.isConnected) byId("time-body").append(this.#chart.node);
    this.draw();
  }

  draw() {
    if (this.#last !== null) this.#chart.show(this.#last);
  }
}

const hour = (at) => clock(at).slice(0, 5);

function draw({ until, minutes }, width) {
  const begin = until - 60 * MINUTES;
  const visible = minutes.filter((minute) => minute.at >= begin);
  const most = Math.max(1, ...visible.map((minute) => minute.requests));
  const left = 8 + 7 * count(most).length;
  const step = (width - left) / MINUTES;
  const y = (value) => HEIGHT - ((HEIGHT - 12) * value) / most;
  const bar = (minute, value, kind) => (value === 0 ? [] : [shape("rect", {
    class: `bar ${kind}`, x: left + (step * (minute.at - begin)) / 60 + 0.5, y: y(value), width: Math.max(1, step - 1), height: HEIGHT - y(value),
  })]);
  const parts = [
    shape("line", { class: "grid", x1: left, x2: width, y1: y(most), y2: y(most) }),
    shape("text", { class: "soft", x: left - 6, y: y(most) + 4, "text-anchor": "end" }, count(most)),
    ...visible.flatMap((minute) => [
      ...bar(minute, minute.requests, ""),
      ...bar(minute, Math.min(minute.requests, minute.fallbacks + minute.failed), "warn"),
      ...bar(minute, minute.failed, "bad"),
    ]),
    shape("line", { class: "axis", x1: left, x2: width, y1: HEIGHT, y2: HEIGHT }),
    ...ticks(until, begin, left, step, width),
  ];
  const rows = [...visible].reverse().map((minute) => [hour(minute.at), count(minute.requests), count(minute.fallbacks),
    count(minute.failed), dollars(minute.cost)]);
  const sum = (name) => visible.reduce((total, minute) => total + minute[name], 0);
  const desc = `${count(sum("requests"))} requests in the last hour, at most ${count(most)} in a minute; `
    + `${count(sum("fallbacks"))} were decided without a forecast, ${count(sum("failed"))} failed`;
  return { parts, height: HEIGHT + FOOT, desc, columns: COLUMNS, rows };
}

/** A time label every ten minutes, or every twenty in a narrow window. */
function ticks(until, begin, left, step, width) {
  const every = width < 480 ? 1200 : 600;
  const parts = [];
  for (let at = Math.ceil(begin / every) * every; at < until; at += every) {
    const x = left + (step * (at - begin)) / 60;
    if (x < left + 16 || x > width - 16) continue;
    parts.push(shape("line", { class: "axis", x1: x, x2: x, y1: HEIGHT, y2: HEIGHT + 4 }),
      shape("text", { class: "soft", x, y: HEIGHT + 17, "text-anchor": "middle" }, hour(at)));
  }
  return parts;
}
