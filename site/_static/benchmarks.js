// SPDX-License-Identifier: MIT
// Tables of measured.js: rows chosen by card, type and the like, sorted by any column.
"use strict";

const TYPES = {
  f2: "float16", f4: "float32", f8: "float64", bf2: "bfloat16",
  i1: "int8", i2: "int16", i4: "int32", i8: "int64", u1: "uint8", bool: "bool",
};

function kernelRows({ card, rows }) {
  return rows.map((row) => {
    const peers = Object.entries(row.peers).sort((a, b) => a[1].median - b[1].median);
    const [peer, time] = peers[0] || ["", {}];
    const type = /\[(\w+)/.exec(row.case);
    return {
      card, type: (type && TYPES[type[1]]) || "other", family: row.family,
      case: row.case + (row.kind === "eager" ? ", eager" : ""),
      ms: row.ms.median, share: row.share, peer, "its ms": time.median, ratio: row.of_best_peer,
    };
  });
}

function trainingRows({ card, rows }) {
  return rows.map((row) => {
    const type = /bfloat16|float32/.exec(row.label) || ["mixed"];
    return {
      card, type: type[0], model: row.label, way: row.way, ms: row.median_ms,
      peak: row.peak_bytes / 1e9, held: row.held_bytes / 1e9,
    };
  });
}

const TABLES = {
  kernel: {
    rows: kernelRows, choosers: ["card", "type", "family"], sorted: "case",
    columns: {
      case: ["case"], ms: ["ms", 4], share: ["of copy rate", "%"], peer: ["best other way"],
      "its ms": ["its ms", 4], ratio: ["ours / its", 2],
    },
  },
  training: {
    rows: trainingRows, choosers: ["card", "type", "model"], sorted: "model",
    columns: {
      model: ["model"], way: ["way"], ms: ["ms a step", 1], peak: ["peak GB", 2], held: ["held GB", 2],
    },
  },
};

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function shown(value, digits) {
  if (value === null || value === undefined || value === "") return "";
  if (digits === "%") return `${Math.round(100 * value)} %`;
  return digits === undefined ? value : value.toFixed(digits);
}

// Numbers by size, texts by letters; rows without a value last in either direction.
function compare(a, b, down) {
  const [first, second] = [a, b].map((x) => x === null || x === undefined || x === "");
  if (first || second) return first - second;
  const order = typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
  return down ? -order : order;
}

function show(place, { rows: read, choosers, columns, sorted }, measured) {
  const rows = measured.flatMap(read);
  const state = { key: sorted, down: false, text: "" };
  const form = element("form", { class: "choosers" });
  const selects = choosers.map((name) => {
    const select = element("select", { name });
    const values = [...new Set(rows.map((row) => row[name]))].sort();
    if (values.length > 1) select.append(element("option", { value: "" }, "all"));
    for (const value of values) select.append(element("option", { value }, value));
    select.addEventListener("change", fill);
    form.append(element("label", {}, name, select));
    return select;
  });
  const text = element("input", { type: "search", placeholder: "part of a name" });
  text.addEventListener("input", fill);
  form.append(element("label", {}, "name", text));
  form.addEventListener("submit", (event) => event.preventDefault());
  const count = element("output", { "aria-live": "polite" });
  form.append(count);

  const heads = Object.entries(columns).map(([key, [title, digits]]) => {
    const button = element("button", { type: "button" }, title);
    button.addEventListener("click", () => {
      state.down = state.key === key && !state.down;
      state.key = key;
      fill();
    });
    const head = element("th", { scope: "col", class: digits === undefined ? "" : "number" }, button);
    return [key, head];
  });
  const body = element("tbody");
  const head = element("thead", {}, element("tr", {}, ...heads.map((each) => each[1])));
  const table = element("table", { class: "table" }, head, body);
  place.replaceChildren(form, element("div", { class: "pst-scrollable-table-container" }, table));

  function fill() {
    const part = text.value.trim().toLowerCase();
    const chosen = rows.filter((row) =>
      selects.every((select) => !select.value || row[select.name] === select.value) &&
      Object.keys(columns).some((key) => String(row[key]).toLowerCase().includes(part)));
    chosen.sort((a, b) => compare(a[state.key], b[state.key], state.down));
    for (const [key, each] of heads) {
      if (key === state.key) each.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else each.removeAttribute("aria-sort");
    }
    body.replaceChildren(...chosen.map((row) => element("tr", {},
      ...Object.entries(columns).map(([key, [, digits]]) =>
        element("td", { class: digits === undefined ? "" : "number" }, shown(row[key], digits))))));
    count.textContent = `${chosen.length} of ${rows.length}`;
  }
  fill();
}

for (const [name, table] of Object.entries(TABLES)) {
  show(document.getElementById(`${name}-times`), table, MEASURED[name]);
}
