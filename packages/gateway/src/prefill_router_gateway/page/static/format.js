// Formats numbers for people. Unknown values are a dash, unknown costs a question mark.

export const NONE = "–";

const isKnown = (value) => value !== null && value !== undefined;
const whole = new Intl.NumberFormat("en");
const exact = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const brief = new Intl.NumberFormat("en", { maximumSignificantDigits: 3, notation: "compact" });
const LEAST = 1e-7;

export function count(value) {
  return isKnown(value) ? whole.format(value) : NONE;
}

/** US dollars: cents from one dollar on, three significant digits below, as in the commands. */
export function dollars(value) {
  if (!isKnown(value)) return "?";
  if (value === 0) return "$0";
  const size = Math.abs(value);
  if (size < LEAST) return `<\u00a0$${LEAST.toFixed(7)}`;
  if (size >= 999.995) return `$${whole.format(Math.round(value))}`;
  if (size >= 1) return `$${value.toFixed(2)}`;
  const digits = Math.max(2, 2 - Math.floor(Math.log10(Number(size.toPrecision(3)))));
  return `$${value.toFixed(digits)}`;
}

/** A price. */
export function price(value) {
  return isKnown(value) ? `$${exact.format(value)}` : NONE;
}

/** A round amount for the label of an axis. */
export function tick(value) {
  return `$${brief.format(value)}`;
}

export function percent(value, digits = 1) {
  return isKnown(value) ? `${(100 * value).toFixed(digits)}\u00a0%` : NONE;
}

export function number(value, digits = 2) {
  return isKnown(value) ? value.toFixed(digits).replace("-", "\u2212") : NONE;
}

export function duration(seconds) {
  if (!isKnown(seconds)) return NONE;
  if (seconds < 0.01) return `${(1000 * seconds).toFixed(1)}\u00a0ms`;
  if (seconds < 1) return `${Math.round(1000 * seconds)}\u00a0ms`;
  return seconds < 10 ? `${seconds.toFixed(2)}\u00a0s` : `${seconds.toFixed(1)}\u00a0s`;
}

/** A long duration, for example the uptime. */
export function span(seconds) {
  const minutes = Math.floor(seconds / 60);
  const hours = Math.floor(minutes / 60);
  const days = Math.floor(hours / 24);
  if (days > 0) return `${days} d ${hours % 24} h`;
  if (hours > 0) return `${hours} h ${minutes % 60} min`;
  return minutes > 0 ? `${minutes} min` : `${Math.floor(seconds)}\u00a0s`;
}

/** A time of day, in the browser's time zone. */
export function clock(at) {
  return new Date(1000 * at).toLocaleTimeString("en-GB", { hour12: false });
}

export function moment(at) {
  return new Date(1000 * at).toLocaleString("en-GB", { hour12: false, dateStyle: "medium", timeStyle: "medium" });
}

export function short(fingerprint) {
  return fingerprint ? fingerprint.slice(0, 12) : NONE;
}
