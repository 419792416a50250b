// Explains one decision.

import { get } from "./api.js";
import { picture, small } from "./charts.js";
import { byId, el, pairs, shape, table } from "./dom.js";
import { NONE, clock, count, dollars, duration, moment, number, percent } from "./format.js";
import { BECAUSE, ENDS, FALLBACKS, KINDS, OUTCOMES, SCORED } from "./words.js";

export class Detail {
  #shownId = null;
  #closed;

  /** @param {(id: string | null) => void} shows Called with the id that is shown, or null. */
  constructor(shows, closed) {
    this.shows = shows;
    this.#closed = closed;
    byId("detail-close").addEventListener("click", () => this.close());
    byId("detail").addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.close();
    });
  }

  async open(id, focus) {
    this.#shownId = id;
    this.shows(id);
    const body = byId("detail-body");
    let content;
    try {
      content = explain(await get(`decisions/${encodeURIComponent(id)}`));
    } catch (error) {
      content = [el("p", { class: "notice bad" }, error.message)];
    }
    if (this.#shownId !== id) return;
    byId("detail").hidden = false;
    byId("detail").scrollTop = 0;
    body.replaceChildren(...content);
    if (focus) byId("detail-title").focus();
  }

  close() {
    this.#shownId = null;
    byId("detail").hidden = true;
    this.#closed();
    this.shows(null);
  }
}

function explain(detail) {
  const { decision } = detail;
  const [outcome] = OUTCOMES[decision.outcome];
  const because = BECAUSE[decision.reason] +
    (decision.fallback ? ` Why: ${FALLBACKS[decision.fallback]}.` : "");
  return [
    el("p", { class: "said" }, el("strong", null, decision.target ?? "no target"), ` · ${outcome} · ${clock(decision.at)}`),
    el("p", null, because),
    el("h4", null, "Every target"),
    targets(detail),
    ...turns(detail),
    el("h4", null, "Calls"),
    attempts(detail),
    el("h4", null, "Time and tokens"),
    pairs(spent(detail)),
    el("h4", null, "Receipt"),
    pairs(record(detail)),
  ];
}

function targets({ targets: all }) {
  const scores = all.map((each) => each.score).filter((score) => score !== null);
  const [low, high] = [Math.min(0, ...scores), Math.max(...scores)];
  const share = (score) => (high > low ? (score - low) / (high - low) : 0);
  const rows = all.map((each) => [
    each.place === null ? el("span", null, each.target, el("br"), el("span", { class: "soft" }, `left out: ${each.excluded ?? NONE}`))
      : `${each.place}. ${each.target}`,
    number(each.probability, 3),
    dollars(each.estimated_cost),
    number(each.score, 3),
    each.score === null ? "" : small(share(each.score), each.place === 1 ? "" : "soft"),
  ]);
  const columns = [{ name: "Target" }, { name: el("abbr", { title: "predicted probability of a correct answer" }, "P"), num: true }, { name: "Estimate", num: true },
    { name: "Score", num: true }, { name: el("span", { class: "unseen" }, "Score as a bar"), spare: 0 }];
  return table("Every target of this decision, in the order of calls", columns, rows);
}

/** The winners at other lams: in words, and as a strip from 0 to 1. */
function turns({ path, below, above, decision }) {
  if (path.length === 0) return [];
  const sentence = [
    below ? `At lam ${number(below.lam)} and below, ${below.target} would win.` : "No other target would win at a lower lam.",
    above ? `Above lam ${number(above.lam)}, ${above.target} would win.` : "No other target would win at a higher lam.",
  ].join(" ");
  const width = 480;
  const parts = path.flatMap((stretch) => {
    const [from, to] = [stretch.lam_from * width, stretch.lam_to * width];
    const mine = decision.lam !== null && decision.lam <= stretch.lam_to && (decision.lam > stretch.lam_from || stretch.lam_from === 0);
    return [shape("rect", { class: `bar ${mine ? "" : "soft"}`, x: from + 1, y: 8, width: Math.max(1, to - from - 2), height: 12, rx: 2 })];
  });
  if (decision.lam !== null) {
    const x = decision.lam * width;
    parts.push(shape("path", { class: "now", d: `M${x - 4} 0h8l-4 6z` }));
  }
  const desc = path.map((s) => `${s.target} from ${number(s.lam_from)} to ${number(s.lam_to)}`).join("; ");
  const rows = path.map((s) => [s.target, number(s.lam_from, 3), number(s.lam_to, 3)]);
  const columns = [{ name: "Winner" }, { name: "From lam", num: true }, { name: "To lam", num: true }];
  return [
    el("h4", null, "At another lam"),
    el("p", null, sentence),
    picture("Winners over lam from 0 to 1", desc, width, 24, parts),
    el("details", null, el("summary", null, "Winners over lam: the numbers"),
      table("Winners over lam", columns, rows)),
  ];
}

function attempts({ attempts: calls }) {
  if (calls.length === 0) return el("p", { class: "soft" }, "No target was called.");
  const rows = calls.map((call, i) => [
    `${i + 1}. ${call.target}`, ENDS[call.end], call.status === null ? NONE : String(call.status), duration(call.seconds),
  ]);
  const failures = calls.flatMap((call, i) => call.failure ? [el("li", { value: i + 1 }, call.failure)] : []);
  const columns = [{ name: "Target" }, { name: "End" }, { name: "Status", num: true }, { name: "Took", num: true }];
  return el("div", null, table("Every call, in order", columns, rows),
    failures.length ? el("ol", { class: "soft" }, failures) : null);
}

/** The interval of the baseline's cost; none where it answered the request itself. */
function spread({ cost, low, high }) {
  if (low === null) return "interval not known";
  return low === cost && high === cost ? "which answered it" : `95\u00a0% from ${dollars(low)} to ${dollars(high)}`;
}

function spent({ decision, timings, tokens, instead, input_tokens: guessed }) {
  const about = tokens.estimated ? "≈ " : "";
  const counts = [
    tokens.input === null ? `${count(guessed)} in, estimated` : `${about}${count(tokens.input)} in`,
    tokens.cached ? `${count(tokens.cached)} of them cached` : null,
    tokens.output === null ? null : `${about}${count(tokens.output)} out`,
    tokens.reasoning ? `${count(tokens.reasoning)} of them reasoning` : null,
  ];
  return [
    ["Decision", duration(timings.decision) + (timings.forecast === null ? "" : `, including ${duration(timings.forecast)} for the forecast`)],
    ["First byte", duration(timings.first_byte)],
    ["Whole request", duration(timings.total)],
    ["Tokens", counts.filter(Boolean).join(", ")],
    ["Cost", `${decision.cost_is_estimated ? "≈ " : ""}${dollars(decision.cost)}, estimated ${dollars(decision.estimated_cost)}`],
    ["Baseline", instead === null ? null : `${dollars(instead.cost)} at ${instead.baseline} alone, ${spread(instead)}`],
  ];
}

/** The agent, what its request is for, and the kind of subagent; none for other clients. */
function nameAgent({ decision, type }) {
  if (decision.agent === null) return null;
  return `${decision.agent}: ${KINDS[decision.kind][1]}${type ? `, type ${type}` : ""}`;
}

function record(detail) {
  const { decision } = detail;
  const lowered = detail.lam_asked !== null && detail.lam_asked !== decision.lam;
  return [
    ["Decision", el("span", { class: "mono" }, decision.id)],
    ["When", moment(decision.at)],
    ["Requested", `${decision.requested}, ${decision.endpoint}${decision.stream ? ", streamed" : ""}, status ${decision.status}`],
    ["Asked by", nameAgent(detail)],
    ["Tools", detail.failing_steps ? `${count(detail.failing_steps)} results in a row had failed` : null],
    ["lam", decision.lam === null ? NONE : number(decision.lam) + (lowered ? `, lowered by a budget from ${number(detail.lam_asked)}` : "")],
    ["Policy alone", detail.policy_target && detail.policy_target !== decision.target ? `would have chosen ${detail.policy_target}` : null],
    ["Novelty", detail.novelty === null ? null : `more novel than ${percent(detail.novelty, 0)} of train rows`],
    ["Encoder read", SCORED[detail.scored]],
    ["Conversation", detail.in_session ? "part of one" : "none"],
    ["Key", detail.key],
    ["Version", detail.version],
    ["Its step", detail.version_step],
    ["Router", detail.router ? el("span", { class: "mono" }, `${detail.router.slice(0, 12)} (${detail.policy})`) : null],
  ];
}
