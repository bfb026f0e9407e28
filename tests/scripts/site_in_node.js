// SPDX-License-Identifier: MIT
// What a browser does with the site, without one:
//     node site_in_node.js search FOLDER QUERY...     the places that each query finds, as JSON
//     node site_in_node.js benchmarks FOLDER          rows of its tables, as they stand after some clicks
"use strict";
const fs = require("fs"), path = require("path"), vm = require("vm");

// As much of a document as the scripts of the site ask for.
class Node {
  constructor(tag) {
    Object.assign(this, { tag, children: [], attributes: {}, handlers: {}, dataset: { content_root: "" }, value: "" });
  }
  append(...more) { this.children.push(...more); }
  replaceChildren(...more) { this.children = more; }
  setAttribute(key, value) { this.attributes[key] = this[key] = value; }
  removeAttribute(key) { delete this.attributes[key]; }
  addEventListener(event, handler) { this.handlers[event] = handler; }
  querySelectorAll() { return []; }
  get text() { return this.children.map((each) => (typeof each === "string" ? each : each.text ?? String(each))).join(""); }
  all(tag) {
    const inner = this.children.filter((each) => each instanceof Node);
    return inner.flatMap((each) => [...(each.tag === tag ? [each] : []), ...each.all(tag)]);
  }
}
const places = {};
const document = new Node("document");
document.documentElement = document.body = document;
document.createElement = (tag) => new Node(tag);
document.getElementById = (id) => (places[id] ??= new Node("div"));
document.readyState = "loading";
const context = vm.createContext({
  document, console, URLSearchParams, localStorage: { setItem() {} }, location: { search: "" },
});
context.window = context;

const [what, folder, ...queries] = process.argv.slice(2);
const load = (...names) => names.forEach((name) => vm.runInContext(fs.readFileSync(path.join(folder, name), "utf8"), context));

if (what === "search") {
  load("_static/documentation_options.js", "_static/doctools.js", "_static/language_data.js", "_static/sphinx_highlight.js", "_static/searchtools.js");
  load("searchindex.js");
  const results = queries.map((query) => {
    context.query = query;
    return vm.runInContext("Search._performSearch(...Search._parseQuery(query))", context).reverse();
  });
  console.log(JSON.stringify(results.map((each) => each.map((result) => result[0]))));
} else {
  load("_static/measured.js", "_static/benchmarks.js");
  const tables = Object.entries(places).map(([id, place]) => {
    const [body] = place.all("tbody");
    const rows = () => body.children.map((row) => row.children.map((cell) => cell.text));
    const shown = { id, first: rows(), titles: place.all("button").map((each) => each.text) };
    shown.choosers = Object.fromEntries(place.all("select").map(
      (each) => [each.name, each.children.map((option) => option.value)]));
    const ms = place.all("button")[shown.titles.findIndex((title) => title.startsWith("ms"))];
    ms.handlers.click();
    shown.rising = rows();
    ms.handlers.click();
    shown.falling = rows();
    const type = place.all("select").find((each) => each.name === "type");
    type.value = "float32";
    type.handlers.change();
    shown.float32 = rows();
    return shown;
  });
  console.log(JSON.stringify(tables));
}
