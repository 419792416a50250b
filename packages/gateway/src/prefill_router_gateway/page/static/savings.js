// What routing saved against one target alone, with its own costs and the quality beside it.

import { get } from "./api.js";
import { byId, el, renew, say } from "./dom.js";
import { count, dollars, moment, number, percent } from "./format.js";

const UNKNOWN = "not known";

export class Savings {
  #figures = el("div");
  #notes = el("ul", { class: "aside" });

  async update() {
    const { problem, savings } = await get("savings");
    if (!this.#figures.isConnected) byId("savings-body").append(this.#figures, this.#notes);
    if (savings === null) {
      renew(this.#figures, el("p", { class: "soft" }, `Not known: ${problem}.`));
      renew(this.#notes);
      return;
    }
    say(byId("savings-of"), `since ${moment(savings.since)}, against the baseline ${savings.baseline}`);
    renew(this.#figures, figures(savings));
    renew(this.#notes, ...savings.notes.map((note) => el("li", null, note)));
  }
}

function figures(savings) {
  const figure = (name, value, more) => el("div", null, el("dt", null, name), el("dd", null, value, more ? el("small", null, more) : null));
  const { saved, share, net, deducted, observed, expected_gain: gain } = savings;
  const costs = deducted.map((deduction) => `${deduction.kind} ${deduction.dollars === null ? "not counted" : signed(deduction.dollars)}`).join(", ");
  return el("dl", { class: "figures" },
    figure("Spent", dollars(savings.spent), `${count(savings.requests)} routed requests`),
    figure(`All at ${savings.baseline}`, `≈ ${dollars(savings.at_baseline)}`, "estimated"),
    figure("Saved", signed(saved.value), `${share.value === null ? "" : `${percent(share.value)} of that; `}${range(saved, signed)}`),
    figure("After routing's own costs", signed(net.value), `${range(net, signed)}; ${costs}`),
    figure("Expected accuracy", expected(savings.expected), gain.value === null ? null
      : `${expected(savings.expected_baseline)} at ${savings.baseline}; difference ${points(gain.value)}, ${range(gain, points)}`),
    figure("Scored answers", observed.value === null ? UNKNOWN : percent(observed.value),
      observed.value === null ? "no labels or feedback yet" : `mean of ${count(savings.scored)}, ${range(observed, percent)}`));
}

const expected = (value) => (value === null ? UNKNOWN : percent(value));
const points = (value) => `${number(100 * value, 1)} points`;

/** Dollars that may be negative. */
function signed(value) {
  if (value === null) return UNKNOWN;
  return value < 0 ? `\u2212${dollars(-value)}` : dollars(value);
}

function range({ low, high }, show) {
  return low === null ? "interval not known" : `95\u00a0% from ${show(low)} to ${show(high)}`;
}
