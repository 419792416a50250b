// The state, performance and abilities of the targets.

import { get } from "./api.js";
import { byId, el, renew, say, table } from "./dom.js";
import { NONE, clock, count, duration, percent, price } from "./format.js";
import { BREAKERS } from "./words.js";

const COLUMNS = [
  { name: "Target" }, { name: "Breaker" }, { name: "Calls", num: true }, { name: "Failed", num: true },
  { name: "First\u00a0byte p50", num: true }, { name: "p95", num: true, spare: 2 },
  { name: "$\u00a0/\u00a0M in", num: true }, { name: "cached", num: true, spare: 2 }, { name: "$\u00a0/\u00a0M out", num: true },
  { name: "Context", num: true, spare: 2 }, { name: "Accepts", spare: 3 }, { name: "Serves", spare: 3 },
];

export class Targets {
  async update() {
    const { prices_date: date, since, targets } = await get("targets");
    say(byId("prices-date"), [`calls since ${clock(since)}`, date ? `prices of ${date}` : ""].filter(Boolean).join(", "));
    const failing = targets.filter((target) => target.breaker !== "closed" && target.last_failure);
    renew(byId("targets-body"), table("Targets: state, performance and abilities", COLUMNS, targets.map(row)),
      ...failing.map((target) => el("p", { class: "aside" }, `${target.target}: ${target.last_failure}`)));
  }
}

function row(target) {
  const [word, kind] = BREAKERS[target.breaker];
  const wait = target.retry_in === null ? "" : `, ${Math.ceil(target.retry_in)} s`;
  const rate = target.requests > 0 ? target.failures / target.requests : 0;
  const failed = target.failures === 0 ? "0" : `${count(target.failures)} (${percent(rate, rate < 0.1 ? 1 : 0)})`;
  return [
    el("span", null, target.target, " ", el("span", { class: "aside" }, target.provider)),
    el("span", { class: `pill ${kind}` }, word + wait),
    count(target.requests), failed,
    duration(target.first_byte_p50), duration(target.first_byte_p95),
    price(target.input_price), price(target.cached_input_price), price(target.output_price),
    target.context_tokens === null ? NONE : count(target.context_tokens),
    target.accepts.join(", ").replaceAll("_", " ") || "text", target.serves.join(", "),
  ];
}
