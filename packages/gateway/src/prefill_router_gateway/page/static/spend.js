// Spending, compared with what one target alone would have cost.

import { get } from "./api.js";
import { Chart, bars, small } from "./charts.js";
import { byId, el, renew, say, table } from "./dom.js";
import { clock, count, dollars, moment, number, percent } from "./format.js";

const ALONE = [{ name: "Target" }, { name: "Dollars", num: true }, { name: "Source" }];
const BY_KEY = [{ name: "Key" }, { name: "Requests", num: true }, { name: "Dollars", num: true }, { name: "per 1,000", num: true }];
const BY_TARGET = [{ name: "Target" }, { name: "Requests", num: true }, { name: "Dollars", num: true }, { name: "per 1,000", num: true }, { name: "Share", num: true }];

export class Spend {
  #figures = el("div");
  #nothing = el("p", { class: "soft" }, "Nothing was spent.");
  #compared = el("p", { class: "aside" });
  #budgets = el("div");
  #keys = el("div");
  #alone = new Chart("Spend compared with a single target", drawAlone);
  #targets = new Chart("Spend by target", drawTargets);
  #last = null;

  constructor() {
    byId("window").addEventListener("change", () => this.draw());
  }

  async update() {
    this.#last = await get("spend");
    if (!this.#figures.isConnected) {
      byId("spend-body").append(this.#figures, this.#alone.node, this.#compared, el("h4", null, "By target"),
        this.#nothing, this.#targets.node, el("h4", null, "By key"), this.#keys, el("h4", null, "Budgets"), this.#budgets);
    }
    this.draw();
  }

  draw() {
    if (this.#last === null) return;
    const name = document.querySelector('input[name="window"]:checked').value;
    const spent = this.#last[name];
    renew(this.#figures, figures(spent));
    say(this.#compared, compared(spent));
    this.#alone.show(spent);
    this.#nothing.hidden = spent.by_target.length > 0;
    this.#targets.node.hidden = spent.by_target.length === 0;
    this.#targets.show(spent);
    renew(this.#keys, keys(spent.by_key));
    renew(this.#budgets, budgets(this.#last.budgets));
  }
}

/** The cost per 1,000 requests; null where unknown. */
const thousand = ({ cost, requests }) => (requests > 0 && cost !== null ? (1000 * cost) / requests : null);

function figures(spent) {
  const figure = (name, value, more) => el("div", null, el("dt", null, name), el("dd", null, value, more ? el("small", null, more) : null));
  const share = spent.at_baseline > 0 ? 1 - spent.compared_cost / spent.at_baseline : null;
  return el("dl", { class: "figures" },
    figure("Spent", dollars(spent.cost), `${count(spent.requests)} requests since ${clock(spent.since)}${unknown(spent)}`),
    figure("Per 1,000 requests", dollars(thousand(spent))),
    share === null ? null : figure("Compared with the baseline", against(share), `than ${spent.baseline} alone, estimated`));
}

/** A note on answers of unknown cost, which are in no sum. */
function unknown(spent) {
  return spent.unknown > 0 ? `, ${count(spent.unknown)} of them of unknown cost` : "";
}

/** The share saved in words; a negative share means more, and beyond twice as much a multiple. */
function against(share) {
  if (share >= 0) return `${percent(share, 0)} less`;
  return share > -1 ? `${percent(-share, 0)} more` : `${number(1 - share, 1)} times as much`;
}

/** A note on which requests are compared, as in the savings. */
function compared({ requests, compared: some, compared_cost: cost, baseline }) {
  if (some === requests) return "";
  return some === 0 ? "No request can be compared with a baseline."
    : `The comparison is over the ${count(some)} requests that the router decided and whose cost at ${baseline} can be estimated; they cost ${dollars(cost)}.`;
}

function drawAlone(spent, width) {
  const isCompared = spent.compared > 0;
  const cost = isCompared ? spent.compared_cost : spent.cost;
  const rows = [{ label: "as routed", value: cost ?? 0, text: dollars(cost), kind: "" }];
  const table = [["as routed", dollars(cost), "observed"]];
  if (isCompared) {
    rows.push({ label: `all ${spent.baseline}`, value: spent.at_baseline, text: `≈ ${dollars(spent.at_baseline)}`, kind: "soft" });
    table.push([`all ${spent.baseline}, the baseline`, dollars(spent.at_baseline), "estimated"]);
  }
  const desc = table.map(([who, cost, how]) => `${who}: ${cost}, ${how}`).join("; ");
  return { ...bars(rows, width, Math.max(...rows.map((row) => row.value))), desc, columns: ALONE, rows: table };
}

function drawTargets(spent, width) {
  const rows = spent.by_target.map((each) => ({ label: each.target, value: each.cost ?? 0, text: dollars(each.cost) }));
  const table = spent.by_target.map((each) => [
    each.target, count(each.requests), dollars(each.cost), dollars(thousand(each)),
    spent.cost > 0 && each.cost !== null ? percent(each.cost / spent.cost) : "–",
  ]);
  const desc = rows.map((row) => `${row.label}: ${row.text}`).join("; ");
  return { ...bars(rows, width, Math.max(0, ...rows.map((row) => row.value))), desc, columns: BY_TARGET, rows: table };
}

function keys(all) {
  if (all.length === 0) return el("p", { class: "soft" }, "No requests yet.");
  const rows = all.map((each) => [each.key ?? "without a key", count(each.requests), dollars(each.cost), dollars(thousand(each))]);
  return el("div", { class: "scroll", role: "region", "aria-label": "Spend by key, a table", tabindex: "0" },
    table("Spend by client key", BY_KEY, rows));
}

/** What is left of a budget and, where replicas share it, of this replica's lease. */
function left({ dollars: limit, spent, leased }) {
  const whole = `${dollars(Math.max(0, limit - spent))} of ${dollars(limit)}`;
  return leased === null ? whole : el("span", null, whole, el("br"), `${dollars(leased)} leased here`);
}

function budgets(all) {
  if (all.length === 0) return el("p", { class: "soft" }, "No budgets are set.");
  const rows = all.map((budget) => {
    const share = budget.spent / budget.dollars;
    const kind = share >= 1 ? "bad" : share >= budget.soften_from ? "warn" : "";
    const does = share >= 1 ? (budget.stop ? "requests are refused" : "the cheapest target answers")
      : share >= budget.soften_from ? "lam is being lowered" : "no effect yet";
    return [`${budget.key ?? "whole gateway"}, per ${budget.per}`, small(share, kind),
      left(budget), does,
      el("span", { title: moment(budget.resets_at) }, clock(budget.resets_at))];
  });
  const columns = [{ name: "Budget" }, { name: el("span", { class: "unseen" }, "Spent, as a bar"), spare: 0 },
    { name: "Left", num: true }, { name: "Effect" }, { name: "Resets", num: true, spare: 0 }];
  return el("div", { class: "scroll", role: "region", "aria-label": "Budgets, a table", tabindex: "0" },
    table("Budgets and what remains of them", columns, rows));
}
