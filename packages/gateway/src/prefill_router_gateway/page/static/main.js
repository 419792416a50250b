// Assembles the page.

import { get } from "./api.js";
import { Decisions } from "./decisions.js";
import { Detail } from "./detail.js";
import { byId, el, notice, renew, say } from "./dom.js";
import { Drift } from "./drift.js";
import { clock, count, number, percent, short, span } from "./format.js";
import { Polling } from "./polling.js";
import { Savings } from "./savings.js";
import { Spend } from "./spend.js";
import { Targets } from "./targets.js";
import { Timeline } from "./timeline.js";
import { TradeOff } from "./tradeoff.js";
import { Trying } from "./trying.js";
import { Versions } from "./versions.js";
import { STATES } from "./words.js";

const detail = new Detail((id) => decisions.mark(id), () => decisions.focus());
const decisions = new Decisions((id, focus) => detail.open(id, focus));
const spend = new Spend();
const savings = new Savings();
const versions = new Versions();
const tradeoff = new TradeOff(() => overview());
const targets = new Targets();
const timeline = new Timeline();
const drift = new Drift();
new Trying((id) => detail.open(id, true));

async function overview() {
  const now = await get("overview");
  const [word, kind] = STATES[now.state];
  byId("state").className = `pill ${kind}`;
  say(byId("state"), word);
  byId("problems").hidden = now.problems.length === 0;
  renew(byId("problems").firstChild, ...now.problems.map((problem) => el("li", null, problem)));
  const lowered = Math.abs(now.lam - now.lam_set) >= 0.005;
  const facts = {
    router: now.serving ?? short(now.router),
    policy: now.policy ?? "none",
    encoder: now.encoder ?? "none",
    lam: lowered ? `${number(now.lam)}, lowered by a budget from ${number(now.lam_set)}` : number(now.lam),
    fallback: `${percent(now.fallback_share, 0)} of the last minute`,
    shared: sharing(now.shared),
    requests: `${count(now.requests_last_hour)} requests`,
    up: span(now.uptime_seconds),
  };
  for (const [name, value] of Object.entries(facts)) say(byId(`fact-${name}`), value);
  byId("fact-router").title = now.router ?? "";
  byId("fact-lam").title = now.lam_reason;
  say(byId("foot"), `prefill-router ${now.version}`);
  tradeoff.setCurrent(now.lam_set);
}

/** With how many replicas state is shared, or since when this one is cut off from them. */
function sharing(shared) {
  if (shared === null) return "nothing";
  return shared.away_since === null ? `by ${count(shared.replicas)} replicas` : `cut off since ${clock(shared.away_since)}`;
}

function report(error) {
  if (error === null) {
    notice(byId("lost"), "");
    return;
  }
  if (error.status === 0) {
    byId("state").className = "pill bad";
    say(byId("state"), "no answer");
  }
  const again = el("button", { type: "button", click: () => resume() }, error.status === 401 ? "Enter a key" : "Try now");
  const text = error.status === 0 ? "The gateway doesn't answer. The page retries automatically." : error.message;
  if (byId("lost").hidden || byId("lost").firstChild.textContent !== text) notice(byId("lost"), text, again);
}

function resume() {
  // The focused button disappears with its notice.
  byId("main").focus({ preventScroll: true });
  notice(byId("lost"), "");
  polling.paused = false;
  showPause();
}

function showPause() {
  byId("pause").setAttribute("aria-pressed", String(polling.paused));
  say(byId("beat"), polling.paused ? "paused" : "updates every second");
}

const polling = new Polling(report);
polling.add(3, overview);
polling.add(1, () => decisions.update());
polling.add(5, () => timeline.update());
polling.add(10, () => spend.update());
polling.add(30, () => savings.update());
polling.add(10, () => versions.update());
polling.add(15, () => tradeoff.update());
polling.add(5, () => targets.update());
polling.add(30, () => drift.update());

byId("pause").addEventListener("click", () => {
  polling.paused = !polling.paused;
  showPause();
});

const theme = byId("theme");
const chosen = document.documentElement.dataset.theme;
theme.querySelector(`input[value="${chosen}"]`).checked = true;
theme.addEventListener("change", (event) => {
  document.documentElement.dataset.theme = event.target.value;
  try {
    localStorage.setItem("prefill-router-theme", event.target.value);
  } catch {
    // Without storage it lasts until the page is closed.
  }
});

let resized = 0;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(() => [timeline, spend, tradeoff, drift].forEach((part) => part.draw()), 100);
});
