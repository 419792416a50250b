// Makes elements from names, attributes and text; nothing is parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

/** An HTML element; functions among the attributes are event listeners, null ones are left out. */
export function el(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** An SVG element. */
export function shape(name, attributes, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

export function byId(id) {
  return document.getElementById(id);
}

/** Sets a text only where it differs, so that live regions aren't announced again. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
  return node;
}

/** Sets a node's content and keeps equal nodes, with their focus, selection and scroll position. */
export function renew(node, ...content) {
  const old = [...node.childNodes];
  content.forEach((item, i) => {
    const fresh = item instanceof Node ? item : document.createTextNode(item);
    if (!old[i]) node.append(fresh);
    else if (old[i].nodeName === fresh.nodeName) makeEqual(old[i], fresh);
    else old[i].replaceWith(fresh);
  });
  old.slice(content.length).forEach((rest) => rest.remove());
}

function makeEqual(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeType === Node.TEXT_NODE) {
    old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  renew(old, ...fresh.childNodes);
}

/** Shows a notice, or hides it if the text is empty. */
export function notice(node, text, ...more) {
  node.hidden = !text;
  if (text) node.replaceChildren(el("span", null, text), ...more);
  else node.replaceChildren();
}

/** Pairs of names and values; those without a value are left out. */
export function pairs(entries, attributes = { class: "pairs" }) {
  const withValue = entries.filter(([, value]) => value !== null && value !== undefined);
  return el("dl", attributes, withValue.map(([name, value]) => [el("dt", null, name), el("dd", null, value)]));
}

/** A table: columns are {name, num}, rows are lists of texts or nodes; the first cell is a header. */
export function table(caption, columns, rows, attributes) {
  const head = columns.map((c) => el("th", { scope: "col", class: kind(c) }, c.name));
  const body = rows.map((row) =>
    el("tr", null, row.map((cell, i) =>
      i === 0 ? el("th", { scope: "row" }, cell) : el("td", { class: kind(columns[i]) }, cell))));
  return el("table", attributes, el("caption", { class: "unseen" }, caption),
    el("thead", null, el("tr", null, head)), el("tbody", null, body));
}

function kind(column) {
  return [column.num ? "num" : "", column.spare !== undefined ? `spare${column.spare}` : ""].join(" ").trim() || null;
}
