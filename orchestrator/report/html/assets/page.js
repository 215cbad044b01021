const MAKERS = {
  table: makeTable,
  chart: makeChart,
  facts: makeFacts,
  log: makeLog,
  command: makeCommand,
  text: (block) => el("p", {}, block.text),
};

function makeSection(section) {
  const id = nextId("section");
  const heading = el("h2", { id }, section.title);
  const parts = section.blocks.map((block) => MAKERS[block.kind](block));
  return { id, element: el("section", { "aria-labelledby": id }, heading, section.lead ? el("p", { class: "lead" }, section.lead) : null, ...parts) };
}

function makePage() {
  const header = el("header", {}, el("h1", {}, data.title), el("ul", { class: "summary" }, ...data.summary.map((line) => el("li", {}, line))));
  const sections = data.sections.map(makeSection);
  const links = sections.map(({ id }, i) => el("li", {}, el("a", { href: "#" + id }, data.sections[i].title)));
  const contents = el("nav", { "aria-label": "Contents" }, el("ul", {}, ...links));
  const main = el("main", { id: "content", tabindex: "-1" }, ...sections.map(({ element }) => element));
  document.getElementById("app").append(header, contents, main, el("footer", {}, "Made by farbench. This file holds everything that it shows."));
}

makePage();
