// Calls of the gateway, with the admin key where it requires one.

import { byId, notice } from "./dom.js";

const STORED = "prefill-router-key";

/** An error of the gateway, or no answer at all (status 0). */
export class CallError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

let asking = null;

function readKey() {
  try {
    return sessionStorage.getItem(STORED);
  } catch {
    return memoryKey;
  }
}

let memoryKey = null; // used where the browser has no storage

function storeKey(key) {
  memoryKey = key;
  try {
    sessionStorage.setItem(STORED, key);
  } catch {
    // Without storage it lasts as long as the page.
  }
}

/** Asks the user for the key; calls that need it at the same time share one dialog. */
function askKey(wrong) {
  asking ??= new Promise((resolve, refuse) => {
    const dialog = byId("ask-key");
    notice(byId("key-wrong"), wrong);
    dialog.returnValue = "";
    byId("key-form").onsubmit = () => storeKey(byId("key").value.trim());
    dialog.onclose = () => {
      const key = byId("key").value.trim();
      byId("key").value = "";
      asking = null;
      if (key) resolve();
      else refuse(new CallError("The gateway requires an admin key.", 401));
    };
    dialog.oncancel = () => { byId("key").value = ""; };
    dialog.showModal();
  });
  return asking;
}

let entry = null; // the first call: others wait for it, so that a missing key is refused only once

/** Calls the gateway, asking for a key where needed; returns any other response. */
export async function call(path, options = {}) {
  if (entry !== null) {
    await entry;
    return send(path, options);
  }
  const reply = send(path, options);
  entry = reply.catch((error) => {
    entry = null;
    if (error.name !== "AbortError") throw error;
  });
  entry.catch(() => {}); // the caller of the first call gets its error; nobody else may wait
  return reply;
}

/** Sends a call until it isn't refused for its key. */
async function send(path, options) {
  for (;;) {
    const key = readKey();
    const headers = { ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
    let reply;
    try {
      reply = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new CallError("The gateway doesn't answer.", 0);
    }
    if (reply.status !== 401 && reply.status !== 403) return reply;
    const wrong = key ? await errorText(reply) : "";
    if (readKey() === key) await askKey(wrong); // else the user gave another meanwhile
  }
}

/** The message of an error response. */
export async function errorText(reply) {
  try {
    const body = await reply.json();
    return String(body.error.message);
  } catch {
    return `The gateway's response has status ${reply.status}.`;
  }
}

async function read(reply) {
  if (!reply.ok) throw new CallError(await errorText(reply), reply.status);
  return reply.json();
}

export async function get(name) {
  return read(await call(`/page/api/${name}`));
}

export function json(body) {
  return { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } };
}

export async function post(name, body) {
  return read(await call(`/page/api/${name}`, json(body)));
}
