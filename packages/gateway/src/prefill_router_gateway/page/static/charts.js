// SVG charts with a title, a description, and the same numbers in a collapsible table.

import { el, renew, shape, table } from "./dom.js";

let numbers = 0;

/** The picture and the table of one chart; what is open or focused survives updates. */
export class Chart {
  #picture = el("div");
  #table = el("div", { class: "scroll", role: "region", tabindex: "0" });
  #last = null;

  /**
   * @param {string} caption The caption of the picture and the table.
   * @param {(data: any, width: number) => {desc: string, parts: SVGElement[], height: number,
   *   columns: object[], rows: any[][]}} draw Draws the data.
   */
  constructor(caption, draw) {
    this.caption = caption;
    this.draw = draw;
    this.#table.setAttribute("aria-label", `${caption}, a table`);
    this.node = el("figure", null, this.#picture,
      el("details", null, el("summary", null, `${caption}: the numbers`), this.#table));
  }

  show(data) {
    const text = JSON.stringify(data);
    const width = Math.floor(this.#picture.clientWidth);
    if (width === 0 || (this.#last?.text === text && this.#last.width === width)) return;
    this.#last = { text, width };
    const chart = this.draw(data, width);
    this.#picture.replaceChildren(picture(this.caption, chart.desc, width, chart.height, chart.parts));
    renew(this.#table, table(this.caption, chart.columns, chart.rows));
  }
}

/** An SVG with a title and a description for screen readers. */
export function picture(title, desc, width, height, parts) {
  numbers += 1;
  const [named, described] = [`chart-title-${numbers}`, `chart-desc-${numbers}`];
  return shape("svg", {
    role: "img", width, height, viewBox: `0 0 ${width} ${height}`,
    "aria-labelledby": named, "aria-describedby": described,
  }, shape("title", { id: named }, title), shape("desc", { id: described }, desc), ...parts);
}

/** As much of a name as fits; about 6.7 px per character at this size. */
export function cut(text, width) {
  const most = Math.max(4, Math.floor(width / 6.7));
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

/** Horizontal bars: rows are {label, value, text, kind}; `full` is the value of the longest. */
export function bars(rows, width, full) {
  const names = Math.min(190, Math.round(0.36 * width));
  const values = Math.min(150, Math.max(60, 7 * Math.max(0, ...rows.map((row) => row.text.length))));
  const room = Math.max(20, width - names - values - 16);
  const line = 24;
  const parts = rows.flatMap((row, i) => {
    const y = i * line;
    const long = full > 0 ? Math.max(row.value > 0 ? 2 : 0, (row.value / full) * room) : 0;
    return [
      shape("text", { x: 0, y: y + 15 }, cut(row.label, names - 10)),
      shape("rect", { class: "track", x: names, y: y + 4, width: room, height: 14, rx: 3 }),
      shape("rect", { class: `bar ${row.kind ?? ""}`, x: names, y: y + 4, width: long, height: 14, rx: 3 }),
      shape("text", { x: width, y: y + 15, "text-anchor": "end" }, row.text),
    ];
  });
  return { parts, height: Math.max(line, rows.length * line) };
}

/** A small bar in a cell, hidden from screen readers since its number is in the next cell. */
export function small(share, kind = "") {
  const long = Math.max(0, Math.min(1, share)) * 56;
  return shape("svg", { width: 56, height: 8, "aria-hidden": "true", class: "small" },
    shape("rect", { class: "track", width: 56, height: 8, rx: 2 }),
    shape("rect", { class: `bar ${kind}`, width: long, height: 8, rx: 2 }));
}
