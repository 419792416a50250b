// The versions of the router: what serves, and each step that led there with its evidence.

import { get } from "./api.js";
import { byId, el, pairs, say } from "./dom.js";
import { count, moment } from "./format.js";

export class Versions {
  #shown = "";

  async update() {
    const now = await get("versions");
    byId("versions").hidden = now.serving === null;
    if (now.serving === null) return;
    say(byId("versions-of"), `${now.serving}, of ${count(now.versions)} versions`);
    const text = JSON.stringify(now.steps);
    if (text === this.#shown) return; // what was opened stays open
    this.#shown = text;
    byId("versions-body").replaceChildren(
      now.steps.length === 0 ? el("p", { class: "soft" }, "No step was taken yet.")
        : el("ol", { class: "steps" }, now.steps.map((step) => el("li", null, shown(step)))));
  }
}

function shown({ at, words, evidence }) {
  const said = [el("time", { class: "soft" }, moment(at)), ` ${words}`];
  if (evidence.length === 0) return el("p", null, said);
  return el("details", null, el("summary", null, said), pairs(evidence.map(({ name, value }) => [name, value])));
}
