// The slider: shows what another lam would change before it is applied.

import { get, post } from "./api.js";
import { Chart } from "./charts.js";
import { drawCurve } from "./curve.js";
import { byId, el, notice, pairs, renew, say, shape } from "./dom.js";
import { count, dollars, number, percent, span } from "./format.js";

const PAUSE_MS = 200;
const MOST_MOVES = 6;

export class TradeOff {
  #slider = byId("lam");
  #chart = new Chart("Expected accuracy against cost", drawCurve);
  #empty = el("p", { class: "empty", hidden: true }, "No request with a forecast has been recorded yet.");
  #curve = null;
  #set = null;
  #touched = false;
  #calls = 0;
  #timer = 0;
  #whatif = null;
  #changed;

  /** @param {() => void} changed Called when another lam was set. */
  constructor(changed) {
    this.#changed = changed;
    this.#chart.node.insertBefore(legend(), this.#chart.node.lastChild);
    this.#slider.addEventListener("input", () => this.#move());
    byId("apply").addEventListener("click", () => this.#confirm());
    byId("back").addEventListener("click", () => this.#reset());
  }

  async update() {
    this.#curve = await get("curve");
    const { requests, since } = this.#curve;
    byId("curve-of").textContent = since === null ? "" : `${count(requests)} requests within ${span(Math.max(60, Date.now() / 1000 - since))}`;
    this.draw();
    await this.#ask();
  }

  /** Sets the current lam; the slider follows it until the user moves the slider. */
  setCurrent(lam) {
    this.#set = lam;
    if (!this.#touched) this.#slider.value = String(lam);
    this.#label();
    this.draw();
  }

  draw() {
    if (this.#curve === null || this.#set === null) return;
    if (!this.#empty.isConnected) byId("curve").append(this.#empty, this.#chart.node);
    const { points } = this.#curve;
    const some = points.length > 0 && points[0].cost !== null;
    this.#empty.textContent = points.length > 0 ? "Without prices there is no cost to plot accuracy against."
      : "No request with a forecast has been recorded yet.";
    this.#empty.hidden = some;
    this.#chart.node.hidden = !some;
    if (!some) return;
    const then = this.#touched ? this.#at(this.#value()) : null;
    this.#chart.show({ curve: this.#curve, now: this.#at(this.#set), then });
  }

  #value() {
    return Number(this.#slider.value);
  }

  #at(lam) {
    const points = this.#curve.points.filter((point) => point.lam <= lam);
    return { ...(points[points.length - 1] ?? this.#curve.points[0]), lam };
  }

  #label() {
    const lam = this.#value();
    const same = this.#set === null || Math.abs(lam - this.#set) < 0.005;
    byId("lam-value").textContent = same ? `${number(lam)}, current` : number(lam);
    const towards = same ? "the current value" : `${lam > this.#set ? "more accurate" : "cheaper"} than the current ${number(this.#set)}`;
    this.#slider.setAttribute("aria-valuetext", `${number(lam)}, ${towards}`);
    byId("apply").disabled = same;
    byId("back").disabled = same;
  }

  #move() {
    this.#touched = true;
    this.#label();
    this.draw();
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#ask(true).catch((error) => notice(byId("applied"), error.message)), PAUSE_MS);
  }

  #reset() {
    this.#touched = false;
    this.setCurrent(this.#set);
    this.#slider.focus();
    this.#ask().catch(() => {});
  }

  async #ask(aloud = false) {
    this.#calls += 1;
    const call = this.#calls;
    const whatif = await get(`whatif?lam=${this.#value()}`);
    if (call !== this.#calls) return;
    this.#whatif = whatif;
    renew(byId("whatif"), ...changes(whatif));
    // Announced only when the user moves the slider, since new requests change the numbers often.
    if (aloud) say(byId("whatif-said"), spoken(whatif));
  }

  async #confirm() {
    clearTimeout(this.#timer);
    const lam = this.#value();
    try {
      await this.#ask();
    } catch (error) {
      notice(byId("applied"), error.message);
      return;
    }
    byId("confirm-body").replaceChildren(
      el("p", null, `Requests that give no lam of their own are routed at lam ${number(lam)} instead of ${number(this.#set)}, until the gateway is restarted.`),
      ...changes(this.#whatif));
    const dialog = byId("confirm");
    dialog.returnValue = "";
    dialog.onclose = () => {
      if (dialog.returnValue === "yes") this.#apply(lam, true);
    };
    dialog.showModal();
  }

  async #apply(lam, undo) {
    const box = byId("applied");
    try {
      const answer = await post("lam", { lam });
      this.#touched = false;
      this.setCurrent(answer.lam);
      const back = undo ? el("button", { type: "button", id: "undo", click: () => this.#apply(answer.before, false) }, "Undo") : null;
      notice(box, undo ? `lam is ${number(answer.lam)} now.` : `Undone: lam is ${number(answer.lam)} again.`, ...(back ? [back] : []));
      this.#slider.focus();
      this.#changed();
      await this.#ask();
    } catch (error) {
      notice(box, `It was not applied. ${error.message}`);
    }
  }
}

function legend() {
  const entry = (kind, text) => el("li", null,
    shape("svg", { width: 10, height: 10, "aria-hidden": "true" }, shape("circle", { class: kind, cx: 5, cy: 5, r: 4.5 })), text);
  return el("ul", { class: "legend" }, entry("now", "current"), entry("then", "selected"), entry("single", "one target for all"));
}

function spoken({ then, requests, changed }) {
  return `At lam ${number(then.lam)}: expected accuracy ${percent(then.accuracy)}, ${dollars(then.cost)} per 1,000 requests, ` +
    `another target for ${count(changed)} of ${count(requests)}.`;
}

function changes({ now, then, requests, changed, moves }) {
  if (requests === 0) return [el("p", { class: "soft" }, "There are no recorded requests to compare.")];
  const versus = (before, after) => (before === after ? after : `${before} → ${after}`);
  const facts = pairs([
    ["Expected accuracy", versus(percent(now.accuracy), percent(then.accuracy))],
    ["Estimated cost per 1,000", versus(dollars(now.cost), dollars(then.cost))],
    ["Another target", `${count(changed)} of ${count(requests)} recent requests`],
  ]);
  const items = moves.slice(0, MOST_MOVES).map((move) => el("li", null, `${move.origin} → ${move.to} `, el("strong", null, count(move.requests))));
  const rest = moves.slice(MOST_MOVES).reduce((sum, move) => sum + move.requests, 0);
  if (rest > 0) items.push(el("li", { class: "soft" }, `and ${count(rest)} more`));
  if (now.lam === then.lam) return [facts, el("p", { class: "soft" }, "Move the slider to see what another lam would change.")];
  return items.length ? [facts, el("ul", { class: "moves", "aria-label": "Changes of target" }, items)] : [facts];
}
