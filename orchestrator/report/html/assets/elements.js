// Everything a page shows comes from the JSON in #data and is set as text: nothing here parses HTML.

const data = JSON.parse(document.getElementById("data").textContent);
let serial = 0;
const nextId = (stem) => stem + "-" + ++serial;

/** An element with attributes (`on…` are listeners, null and false are left out) and children (text or nodes). */
function el(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

function makeFacts(block) {
  const list = el("dl", { class: "facts" });
  for (const [name, value] of block.items) list.append(el("div", {}, el("dt", {}, name), el("dd", {}, value)));
  return block.title ? el("div", {}, el("h3", {}, block.title), list) : list;
}

function makeLog(block) {
  // Long texts are laid out only when somebody looks.
  const details = el("details", { class: "log" }, el("summary", {}, block.title));
  details.addEventListener("toggle", () => {
    if (details.open && !details.querySelector("pre")) details.append(preformatted(block.text, block.title));
  });
  return details;
}

/** Preformatted text that can be scrolled with the keyboard. */
function preformatted(text, label) {
  return el("pre", { tabindex: "0", role: "region", "aria-label": label }, text);
}

function makeCommand(block) {
  return el("div", { class: "command" }, block.note ? el("p", {}, block.note) : null, commandLine(block.text));
}

/** A command with a button that copies it. */
function commandLine(text) {
  const said = el("span", { role: "status", class: "said" });
  const copy = () => {
    const done = (words) => {
      said.textContent = words;
      setTimeout(() => (said.textContent = ""), 2000);
    };
    const byHand = () => {
      // A file opened from disk may have no clipboard of its own.
      const area = el("textarea", { readonly: true, class: "offscreen" });
      area.value = text;
      document.body.append(area);
      area.select();
      const ok = document.execCommand("copy");
      area.remove();
      done(ok ? "copied" : "select the text to copy it");
    };
    if (navigator.clipboard) navigator.clipboard.writeText(text).then(() => done("copied"), byHand);
    else byHand();
  };
  return el("div", { class: "commandline" }, el("code", { tabindex: "0" }, text), el("button", { type: "button", onclick: copy }, "Copy"), said);
}
