// The words that the page shows for the gateway's codes.

export const REASONS = {
  policy: "policy",
  session: "conversation kept",
  turn: "same turn",
  state: "target's own state",
  tool_loop: "tool loop",
  named: "named by client",
  fallback: "fallback",
  share: "not routed",
  stored: "stored response",
  latency: "quicker",
  headroom: "rate limit",
  escalation: "escalation",
};

export const BECAUSE = {
  policy: "The router's policy chose it by the forecast.",
  session: "The conversation keeps its target, since a switch would cost more than it gains.",
  turn: "An agent goes on with what the person asked, for which it keeps its target.",
  state: "The conversation has what only this target can read, such as its signed thinking.",
  tool_loop: "The conversation is in a tool loop, where it keeps its target.",
  named: "The client named the target, so nothing was routed.",
  fallback: "There was no forecast that could be used, so the fallback chose.",
  share: "The request is outside the routed share of the traffic.",
  stored: "The request continues a response that this target keeps.",
  latency: "The policy's choice is predicted to be too slow.",
  headroom: "The rate limits of the policy's choice allow no further request.",
  escalation: "The task didn't get on at its target, so that a stronger one goes on with it.",
};

export const FALLBACKS = {
  deadline: "the forecast took longer than its deadline",
  queue_full: "so many requests were queued that the forecast would have been too late",
  encoder_down: "the encoder isn't running",
  unreadable: "the encoder can't read this prompt",
  novel: "the request is unlike the router's train rows",
  no_text: "there is no text to read",
  no_router: "there is no router yet, so the default target answers",
};

export const KINDS = {
  main: ["task", "the person's task"],
  plan: ["plan", "a plan of the person's task"],
  subagent: ["subagent", "a subagent's task"],
  compaction: ["summary", "a summary of the conversation"],
  auxiliary: ["aside", "a title, a topic or a suggestion"],
};

export const OUTCOMES = {
  answered: ["answered", "good"],
  refused: ["refused", "warn"],
  failed: ["failed", "bad"],
  cut: ["cut off", "bad"],
  disconnected: ["disconnected", "warn"],
  routed: ["only routed", "good"],
};

export const ENDS = {
  answered: "answered",
  refused: "refused the request",
  connect: "no connection",
  first_token_timeout: "no first token in time",
  silence: "stopped sending",
  answer_timeout: "answer took too long",
  rate_limited: "rate limit",
  overloaded: "overloaded",
  server_error: "server error",
  unauthorised: "refused our key",
  unknown_model: "doesn't know the model",
  context_too_long: "context too long",
  unsupported: "doesn't support a part of it",
  unknown_call: "doesn't support the call",
  broken_off: "broke off",
  malformed: "malformed answer",
  breaker_open: "not called, its breaker is open",
  disconnected: "client disconnected",
};

export const SCORED = {
  ask: "what the person asked",
  last_user: "last user turn",
  last_user_with_system: "last user turn, system prompt",
  conversation: "whole conversation",
  conversation_with_system: "whole conversation, system prompt",
};

export const STATES = {
  ready: ["ready", "good"],
  degraded: ["degraded", "warn"],
  not_ready: ["not ready", "bad"],
};

export const BREAKERS = {
  closed: ["closed", "good"],
  half_open: ["trying again", "warn"],
  open: ["open", "bad"],
};
