// The search field. The index is loaded when the field gets the focus.
"use strict";

const query = document.getElementById("query");
const results = document.getElementById("results");
const root = new URL(".", document.querySelector("link[rel=stylesheet]").href); // where the site begins
let index;

async function load() {
  const url = new URL("search.json", root);
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: status ${response.status}`);
  const search = new MiniSearch({
    fields: ["title", "headings", "text"],
    storeFields: ["title", "text"],
    searchOptions: { boost: { title: 4, headings: 2 }, prefix: true, fuzzy: 0.15, combineWith: "AND" },
  });
  search.addAll(await response.json());
  return search;
}

// excerpt returns the text around the first match.
function excerpt(text, terms) {
  const at = Math.max(0, text.toLowerCase().indexOf(terms[0]) - 40);
  return (at > 0 ? "… " : "") + text.slice(at, at + 140).replace(/\s+/g, " ") + " …";
}

async function show() {
  index ??= load();
  const search = await index;
  results.replaceChildren(...search.search(query.value).slice(0, 12).map((match) => {
    const item = document.createElement("li");
    const link = document.createElement("a");
    link.href = new URL(match.id.replace(/^\//, ""), root);
    link.textContent = match.title;
    const text = document.createElement("small");
    text.textContent = excerpt(match.text, match.terms);
    item.append(link, text);
    return item;
  }));
}

function fail(error) {
  const item = document.createElement("li");
  item.textContent = `The search does not work here: ${error.message}`;
  results.replaceChildren(item);
}

query.addEventListener("focus", () => { (index ??= load()).catch(fail); }, { once: true });
query.addEventListener("input", () => { show().catch(fail); });
query.addEventListener("keydown", (event) => {
  if (event.key === "Escape") results.replaceChildren();
  if (event.key === "Enter") results.querySelector("a")?.click();
});
