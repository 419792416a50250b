// The drift of the traffic from the router's train rows.

import { get } from "./api.js";
import { Chart, bars } from "./charts.js";
import { byId, el, say } from "./dom.js";
import { count, number } from "./format.js";

const SOME = 0.1;
const MUCH = 0.25;
const DRAWN = 10;
const COLUMNS = [{ name: "Feature" }, { name: "Stability index", num: true }, { name: "Reading" }];

const reading = (psi) => (psi >= MUCH ? "large drift" : psi >= SOME ? "some drift" : "no drift");
const kind = (psi) => (psi >= MUCH ? "bad" : psi >= SOME ? "warn" : "");

/** What the indices mean, and what to do. */
function inWords(features) {
  const moved = features.filter((f) => f.psi >= MUCH);
  const moving = features.filter((f) => f.psi >= SOME && f.psi < MUCH);
  const [most] = features;
  if (moved.length > 0) {
    return `The traffic no longer resembles the router's train rows: ${count(moved.length)} of ${count(features.length)} features have a large drift, the largest ${most.feature}, at ${number(most.psi / MUCH, 1)} times the threshold. The router's probabilities may be wrong; export receipts with feedback and fit again.`;
  }
  if (moving.length > 0) {
    return `The traffic is starting to differ from the router's train rows: ${count(moving.length)} of ${count(features.length)} features have some drift, the largest ${most.feature}.`;
  }
  return "The traffic resembles the router's train rows.";
}

export class Drift {
  #summary = el("p", { class: "soft" });
  #chart = new Chart("Drift by feature", draw);
  #last = null;

  async update() {
    this.#last = await get("drift");
    if (!this.#summary.isConnected) byId("drift-body").append(this.#summary, this.#chart.node);
    this.draw();
  }

  draw() {
    if (this.#last === null) return;
    const { watched, requests, needed, mean, features } = this.#last;
    byId("drift-of").textContent = watched ? `${count(requests)} requests` : "";
    this.#chart.node.hidden = mean === null;
    if (!watched) say(this.#summary, "This router has no reference of its train rows, so drift can't be measured.");
    else if (mean === null) say(this.#summary, `${count(requests)} of the ${count(needed)} requests that are needed to measure drift.`);
    else {
      const most = features.length > DRAWN ? ` The chart shows the ${DRAWN} largest.` : "";
      say(this.#summary, `${inWords(features)} The measure is the population stability index, ${number(mean, 3)} on average: below ${SOME} a feature has no drift, from ${MUCH} on a large one.${most}`);
      this.#chart.show(features);
    }
  }
}

function draw(features, width) {
  const most = [...features].sort((a, b) => b.psi - a.psi).slice(0, DRAWN);
  const rows = most.map((f) => ({ label: f.feature, value: f.psi, text: `${number(f.psi, 3)} ${reading(f.psi)}`, kind: kind(f.psi) }));
  const desc = rows.map((row) => `${row.label}: ${row.text}`).join("; ");
  const full = Math.max(MUCH * 1.2, ...most.map((f) => f.psi));
  return { ...bars(rows, width, full), desc, columns: COLUMNS, rows: features.map((f) => [f.feature, number(f.psi, 3), reading(f.psi)]) };
}
