// The table of live decisions.

import { get } from "./api.js";
import { byId, el, say } from "./dom.js";
import { NONE, clock, count, dollars, duration, number } from "./format.js";
import { KINDS, OUTCOMES, REASONS } from "./words.js";

const MOST = 50;
const NEWS_SECONDS = 10;
const GLIDE_MS = 300;
const REST_MS = 30_000;
const WHOLE = /^pr_[0-9a-f]{32}$/;

const ended = (decision) => decision.at + decision.total_seconds;

export class Decisions {
  #body = byId("rows").tBodies[0];
  #entries = new Map();
  #cursor = null;
  #chosen = null;
  #unsaid = 0;
  #saidAt = -Infinity;
  #stirredAt = -Infinity;
  #open;
  #outcome = byId("filter-outcome");
  #id = byId("filter-id");
  #query = "";

  /** @param {(id: string, focus: boolean) => void} open Shows the explanation of a decision. */
  constructor(open) {
    this.#open = open;
    this.#body.addEventListener("click", (event) => {
      const row = event.target.closest("tr");
      // A click made with the keyboard has detail 0: focus moves to the explanation.
      if (row) this.#open(row.dataset.id, event.detail === 0);
    });
    this.#body.addEventListener("keydown", (event) => this.#steer(event));
    byId("filter").addEventListener("submit", (event) => this.#find(event));
    byId("filter").addEventListener("input", () => void this.update().catch(() => {}));
    for (const sign of ["pointermove", "focusin", "keydown"]) {
      this.#body.addEventListener(sign, () => { this.#stirredAt = performance.now(); });
    }
  }

  async update() {
    const query = this.#filter();
    const after = this.#cursor === null ? "" : `&after=${encodeURIComponent(this.#cursor)}`;
    const first = this.#cursor === null;
    const { cursor, decisions } = await get(`decisions?limit=${MOST}${after}${query}`);
    if (query !== this.#query) return;
    const fresh = decisions.filter((decision) => !this.#entries.has(decision.id));
    if (fresh.length > 0 && this.#pointedAt()) {
      // The cursor stays the same, so that the next update gets them again.
      say(byId("beat"), `${fresh.length === MOST ? `${MOST} or more` : count(fresh.length)} new, held`);
      return;
    }
    this.#cursor = cursor;
    const top = this.#body.rows[0];
    const was = top?.offsetTop;
    for (const decision of fresh.reverse()) this.#add(decision, !first);
    if (top) this.#slide(top.offsetTop - was);
    this.#trim();
    byId("no-rows").hidden = this.#entries.size > 0;
    this.#announce(first ? 0 : fresh.length);
  }

  /** The query of the filters; if it changed, the table is cleared. */
  #filter() {
    const values = { outcome: this.#outcome.value, id: this.#id.value.trim() };
    const query = Object.entries(values).map(([name, value]) => (value ? `&${name}=${encodeURIComponent(value)}` : "")).join("");
    if (query !== this.#query) {
      [this.#query, this.#cursor] = [query, null];
      this.#entries.clear();
      this.#body.replaceChildren();
      say(byId("no-rows"), query ? "None of the latest requests matches." : "No requests yet. They appear here when they end.");
    }
    return query;
  }

  #find(event) {
    event.preventDefault();
    const id = this.#id.value.trim();
    if (WHOLE.test(id)) this.#open(id, true);
  }

  /** Marks the row whose explanation is shown; null for none. */
  mark(id) {
    this.#row(this.#chosen)?.classList.remove("chosen");
    this.#row(this.#chosen)?.querySelector("button").setAttribute("aria-expanded", "false");
    this.#chosen = id;
    this.#row(id)?.classList.add("chosen");
    this.#row(id)?.querySelector("button").setAttribute("aria-expanded", "true");
  }

  /** Moves the focus back to the marked row, or to the first. */
  focus() {
    const row = this.#row(this.#chosen) ?? this.#body.rows[0];
    if (row) this.#reach(row);
  }

  /** Whether the user is about to choose a row; a pointer that rests there too long doesn't count. */
  #pointedAt() {
    if (performance.now() - this.#stirredAt > REST_MS) return false;
    return this.#body.matches(":hover") || this.#body.querySelector(":focus-visible") !== null;
  }

  /** Animates the rows down to their places. */
  #slide(by) {
    const scroller = this.#body.closest(".scroll");
    if (by <= 0 || scroller.scrollTop > 0 || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    const from = `translateY(${-Math.min(by, scroller.clientHeight)}px)`;
    this.#body.animate([{ transform: from }, { transform: "none" }], { duration: GLIDE_MS, easing: "ease-out" });
  }

  #row(id) {
    return this.#entries.get(id)?.row ?? null;
  }

  #add(decision, fresh) {
    const row = makeRow(decision, fresh);
    const others = [...this.#body.rows];
    const next = others.find((other) => ended(this.#entries.get(other.dataset.id).decision) <= ended(decision));
    this.#body.insertBefore(row, next ?? null);
    this.#entries.set(decision.id, { decision, row });
    if (!this.#body.querySelector('button[tabindex="0"]')) row.querySelector("button").tabIndex = 0;
  }

  #trim() {
    while (this.#body.rows.length > MOST) {
      const last = this.#body.rows[this.#body.rows.length - 1];
      const button = last.querySelector("button");
      if (button === document.activeElement) this.#reach(last.previousElementSibling);
      else if (button.tabIndex === 0) this.#body.rows[0].querySelector("button").tabIndex = 0;
      this.#entries.delete(last.dataset.id);
      last.remove();
    }
  }

  /** Announces the number of new rows from time to time, since a screen reader can't read them all. */
  #announce(more) {
    this.#unsaid += more;
    say(byId("beat"), `updated ${clock(Date.now() / 1000)}`);
    const now = performance.now() / 1000;
    if (this.#unsaid === 0 || now - this.#saidAt < NEWS_SECONDS) return;
    say(byId("news"), `${count(this.#unsaid)} new ${this.#unsaid === 1 ? "decision" : "decisions"}`);
    [this.#unsaid, this.#saidAt] = [0, now];
  }

  #steer(event) {
    const row = event.target.closest("tr");
    const rows = this.#body.rows;
    const to = {
      ArrowDown: row?.nextElementSibling, ArrowUp: row?.previousElementSibling,
      Home: rows[0], End: rows[rows.length - 1],
    }[event.key];
    if (!to) return;
    event.preventDefault();
    this.#reach(to);
  }

  #reach(row) {
    for (const button of this.#body.querySelectorAll('button[tabindex="0"]')) button.tabIndex = -1;
    const button = row.querySelector("button");
    button.tabIndex = 0;
    button.focus();
  }
}

/** The agent and, where it isn't the person's task, what its request is for. */
function nameAgent({ agent, kind }) {
  if (agent === null) return NONE;
  return kind === "main" ? agent : `${KINDS[kind][0]}, ${agent}`;
}

function makeRow(decision, fresh) {
  const time = clock(ended(decision));
  const [outcome, kind] = OUTCOMES[decision.outcome];
  const button = el("button", {
    type: "button", tabindex: "-1", "aria-expanded": "false", "aria-controls": "detail",
    "aria-label": `${time}, why ${decision.target ?? "no target"}`,
  }, time);
  const cell = (text, style) => el("td", { class: style, title: style?.includes("cut") ? text : null }, text);
  return el("tr", { "data-id": decision.id, class: fresh ? "fresh" : null },
    el("td", null, button),
    cell(decision.requested, "cut spare3"),
    cell(nameAgent(decision), "cut spare2"),
    cell(decision.target ?? NONE, "cut"),
    cell(REASONS[decision.reason], "spare1"),
    cell(number(decision.lam), "num spare3"),
    cell(number(decision.probability), "num spare0"),
    cell(dollars(decision.estimated_cost), "num spare2"),
    cell((decision.cost_is_estimated && decision.cost !== null ? "≈ " : "") + dollars(decision.cost), "num"),
    cell(duration(decision.decision_seconds), "num spare3"),
    cell(duration(decision.total_seconds), "num spare1"),
    el("td", null, el("span", { class: `pill ${kind}` }, outcome)));
}
