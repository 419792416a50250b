// The gateway's own words, for people.

export const REASONS = {
  policy: "policy",
  session: "conversation kept",
  tool_loop: "tool loop",
  named: "named by client",
  fallback: "fallback",
  share: "not routed",
  stored: "stored response",
};

export const BECAUSE = {
  policy: "The router's policy chose it on its forecast.",
  session: "The conversation stays with its target: a switch would cost more than it gains.",
  tool_loop: "The conversation waits for tool results, and its target never changes there.",
  named: "The client named the target, so nothing was routed.",
  fallback: "There was no forecast to go by, so the fallback chose.",
  share: "The request is outside the share of traffic that is routed.",
  stored: "The request goes on from a response that this target keeps.",
};

export const FALLBACKS = {
  deadline: "the forecast took longer than its deadline",
  queue_full: "so many requests were waiting that the forecast would have come too late",
  encoder_down: "the encoder isn't running",
  unreadable: "the encoder can't read this prompt",
  novel: "the request is unlike anything the router learned from",
  no_text: "there is no text to read",
};

export const OUTCOMES = {
  answered: ["answered", "good"],
  refused: ["refused", "warn"],
  failed: ["failed", "bad"],
  cut: ["cut off", "bad"],
  disconnected: ["client left", "warn"],
  routed: ["only routed", "good"],
};

export const ENDS = {
  answered: "answered",
  refused: "refused the request",
  connect: "no connection",
  first_token_timeout: "no first token in time",
  silence: "fell silent",
  answer_timeout: "took too long",
  rate_limited: "rate limit",
  overloaded: "overloaded",
  server_error: "server error",
  unauthorised: "refused our key",
  unknown_model: "doesn't know the model",
  context_too_long: "context too long",
  unknown_call: "has no such call",
  broken_off: "broke off",
  malformed: "malformed answer",
  breaker_open: "not asked, its breaker is open",
  disconnected: "client left",
};

export const SCORED = {
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
