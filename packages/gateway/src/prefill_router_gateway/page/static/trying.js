// A form to try a prompt: the decision alone, or the answer too. Answers are shown as plain text.

import { call, errorText, json } from "./api.js";
import { byId, el, notice, pairs, table } from "./dom.js";
import { dollars, number } from "./format.js";

const OWN = "x-prefill-router-";
const NODE = 8192; // characters; longer text nodes take long to lay out again

export class Trying {
  #stop = null;
  #explain;

  /** @param {(id: string) => void} explain Shows a decision. */
  constructor(explain) {
    this.#explain = explain;
    byId("try-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    byId("try-prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("try-form").requestSubmit();
    });
    byId("try-stop").addEventListener("click", () => this.#stop?.abort());
  }

  async #send() {
    if (this.#stop !== null) return;
    this.#stop = new AbortController();
    this.#busy(true);
    notice(byId("try-said"), "Waiting for the gateway.");
    byId("try-answer").replaceChildren();
    try {
      const ask = document.querySelector('input[name="try"]:checked').value === "ask";
      notice(byId("try-said"), await (ask ? this.#ask() : this.#route()));
    } catch (error) {
      notice(byId("try-said"), error.name === "AbortError" ? "Stopped." : error.message);
    } finally {
      this.#stop = null;
      this.#busy(false);
    }
  }

  #busy(busy) {
    // Not `disabled`, which would lose the keyboard focus.
    byId("try-send").setAttribute("aria-disabled", String(busy));
    if (!busy && document.activeElement === byId("try-stop")) byId("try-send").focus();
    byId("try-stop").hidden = !busy;
    byId("try-answer").setAttribute("aria-busy", String(busy));
  }

  async #post(path, more) {
    const lam = byId("try-lam").value;
    const body = { model: "auto", messages: [{ role: "user", content: byId("try-prompt").value }], ...more };
    const options = json(body);
    if (lam !== "") options.headers[`${OWN}lam`] = lam;
    const reply = await call(path, { ...options, signal: this.#stop.signal });
    if (!reply.ok) throw new Error(await errorText(reply));
    return reply;
  }

  async #route() {
    const reply = await this.#post("/v1/route");
    const decision = await reply.json();
    byId("try-answer").replaceChildren(this.#headers(reply), ...routed(decision));
    return `It would go to ${decision.target}. No target was called.`;
  }

  async #ask() {
    const reply = await this.#post("/v1/chat/completions", { stream: true });
    const answer = el("div", { class: "answer", dir: "auto", role: "region", "aria-label": "Answer", tabindex: "0" });
    const thoughts = el("div", { class: "answer", dir: "auto" });
    const thinking = el("details", { hidden: true }, el("summary", null, "Reasoning"), thoughts);
    const [text, thought] = [new Growing(answer), new Growing(thoughts)];
    byId("try-answer").replaceChildren(this.#headers(reply), thinking, answer);
    const target = reply.headers.get(`${OWN}target`);
    notice(byId("try-said"), `${target ?? "A target"} is answering.`);
    try {
      for await (const event of events(reply.body)) {
        if (event.error) throw new Error(String(event.error.message ?? "The answer broke off."));
        const delta = event.choices?.[0]?.delta ?? {};
        text.add(delta.content ?? delta.refusal);
        thought.add(delta.reasoning_content ?? delta.reasoning);
        thinking.hidden = thought.empty;
      }
    } finally {
      text.write();
      thought.write();
    }
    return `${target ?? "A target"} has answered.`;
  }

  #headers(reply) {
    const own = [...reply.headers].filter(([name]) => name.startsWith(OWN));
    const id = own.map(([, value]) => value).find((value) => /^pr_[0-9a-f]{32}$/.test(value));
    const said = pairs(own.map(([name, value]) => [name.slice(OWN.length).replaceAll("-", " "), value]));
    if (!id) return said;
    return el("div", null, said, el("div", { class: "buttons" },
      el("button", { type: "button", click: () => this.#explain(id) }, "Why this target")));
  }
}

/** A text that grows by thousands of pieces: written once per frame, and split into several nodes. */
class Growing {
  #node;
  #held = "";
  #last = null;
  #frame = 0;
  empty = true;

  constructor(node) {
    this.#node = node;
  }

  add(piece) {
    if (!piece) return;
    this.empty = false;
    this.#held += piece;
    this.#frame ||= requestAnimationFrame(() => this.write());
  }

  write() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    if (this.#held === "") return;
    if (this.#last === null || this.#last.length > NODE) this.#node.append(this.#last = new Text(""));
    this.#last.appendData(this.#held);
    this.#held = "";
  }
}

function routed(decision) {
  const all = decision.targets ?? {};
  const names = (decision.order ?? Object.keys(all)).filter((name) => name in all);
  if (names.length === 0) return [];
  const rows = names.map((name) => [name, number(all[name].correctness, 3), dollars(all[name].estimated_cost)]);
  return [table("Every target that could answer, best first",
    [{ name: "Target" }, { name: "Probability", num: true }, { name: "Estimate", num: true }], rows)];
}

/** The JSON of each server-sent event, until [DONE]. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    held += value ?? "";
    const lines = held.split(/\r\n|\n|\r(?!$)/);
    held = done ? "" : lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
    if (done) return;
  }
}
