// A table whose rows can be sorted, filtered and opened. Only the rows in sight are elements, so it may have many.

const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });
const TONES = { good: "✓ ", bad: "✗ ", suspect: "? ", invalid: "! ", open: "", muted: "" };

const shownOf = (cell) => (Array.isArray(cell) ? cell[0] : cell === null ? "" : cell);
const sortOf = (cell) => (Array.isArray(cell) && cell[1] !== null ? cell[1] : shownOf(cell));
const toneOf = (cell) => (Array.isArray(cell) ? cell[2] : undefined);

function compareCells(a, b, direction) {
  const left = sortOf(a);
  const right = sortOf(b);
  if (left === "" || right === "") return (left === "") - (right === ""); // what is missing comes last either way
  const numbers = typeof left === "number" && typeof right === "number";
  if (!numbers && typeof left !== typeof right) return typeof left === "number" ? -1 : 1;
  return direction * (numbers ? left - right : collator.compare(left, right));
}

function makeTable(spec) {
  const columns = spec.columns.map((column, index) => ({ ...column, index }));
  const visible = columns.filter((column) => !column.detail);
  const details = columns.filter((column) => column.detail);
  const texts = new Array(spec.rows.length);
  const textOf = (row) => (texts[row] = texts[row] ?? spec.rows[row].map(shownOf).join("\n").toLowerCase());
  const state = { words: [], choices: new Map(), sort: null, direction: 1, shown: spec.first, order: [] };

  const body = el("tbody", {});
  const count = el("p", { class: "count", role: "status" });
  const more = el("button", { type: "button", onclick: () => showMore() }, "Show more rows");
  const heads = new Map();
  const headRow = el("tr", {}, details.length ? el("th", { scope: "col", class: "open" }, el("span", { class: "offscreen" }, "Details")) : null);
  for (const column of visible) {
    const button = el("button", { type: "button", onclick: () => sortBy(column) }, column.title);
    const head = el("th", { scope: "col", class: column.kind, "aria-sort": "none" }, button);
    heads.set(column.index, head);
    headRow.append(head);
  }
  const table = el("table", {}, el("caption", {}, spec.caption), el("thead", {}, headRow), body);

  function sortBy(column) {
    const again = state.sort === column.index;
    state.direction = again ? -state.direction : 1;
    state.sort = column.index;
    for (const [index, head] of heads) {
      head.setAttribute("aria-sort", index !== state.sort ? "none" : state.direction > 0 ? "ascending" : "descending");
    }
    refresh();
  }

  function refresh() {
    state.order = [];
    for (let row = 0; row < spec.rows.length; row++) {
      const cells = spec.rows[row];
      let wanted = true;
      for (const [index, value] of state.choices) if (shownOf(cells[index]) !== value) wanted = false;
      if (wanted && state.words.length && !state.words.every((word) => textOf(row).includes(word))) wanted = false;
      if (wanted) state.order.push(row);
    }
    if (state.sort !== null) {
      state.order.sort((a, b) => compareCells(spec.rows[a][state.sort], spec.rows[b][state.sort], state.direction) || a - b);
    }
    state.shown = spec.first;
    body.replaceChildren();
    append(0);
  }

  function showMore() {
    const from = body.querySelectorAll("tr.row").length;
    state.shown = Math.min(state.order.length, state.shown + Math.max(200, spec.first));
    append(from);
    const next = body.querySelectorAll("tr.row")[from];
    if (next) (next.querySelector("button") || next.querySelector("th")).focus();
  }

  function append(from) {
    const rows = state.order.slice(from, state.shown).map(makeRow);
    body.append(...rows);
    const total = state.order.length;
    const shown = Math.min(total, state.shown);
    if (!total) body.append(el("tr", {}, el("td", { colspan: visible.length + 1 }, spec.rows.length ? "No row matches the filter." : spec.empty)));
    more.hidden = shown >= total;
    const of = total === spec.rows.length ? `${total} row${total === 1 ? "" : "s"}` : `${total} of ${spec.rows.length} rows`;
    count.textContent = shown < total ? `${of}, the first ${shown} shown` : of;
  }

  function makeRow(row) {
    const cells = spec.rows[row];
    const element = el("tr", { class: "row" });
    if (details.length) element.append(el("td", { class: "open" }, openButton(element, row)));
    visible.forEach((column, position) => element.append(makeCell(column, cells[column.index], position === 0)));
    return element;
  }

  function makeCell(column, cell, isFirst) {
    const tone = toneOf(cell);
    const classes = [column.kind, tone].filter(Boolean).join(" ");
    const text = (tone && column.kind !== "heat" ? TONES[tone] : "") + shownOf(cell);
    const element = isFirst
      ? el("th", { scope: "row", class: classes, tabindex: "-1" }, text)
      : el("td", { class: classes }, column.kind === "code" ? el("code", {}, text) : text);
    if (column.kind === "heat" && Array.isArray(cell) && typeof cell[1] === "number") paintHeat(element, cell[1]);
    return element;
  }

  function openButton(element, row) {
    const panelId = nextId("details");
    const label = shownOf(spec.rows[row][visible[0].index]);
    const button = el("button", { type: "button", "aria-expanded": "false", "aria-controls": panelId, "aria-label": `Details of ${label}` }, "▸");
    button.addEventListener("click", () => {
      const open = button.getAttribute("aria-expanded") === "false";
      button.setAttribute("aria-expanded", String(open));
      button.textContent = open ? "▾" : "▸";
      if (open) element.after(el("tr", { id: panelId, class: "panel" }, el("td", { colspan: visible.length + 1 }, makeDetails(row))));
      else document.getElementById(panelId).remove();
    });
    return button;
  }

  function makeDetails(row) {
    const cells = spec.rows[row];
    const list = el("dl", { class: "facts" });
    const wide = [];
    for (const column of details) {
      const text = shownOf(cells[column.index]);
      if (!text) continue;
      if (column.kind === "code") wide.push(el("h4", {}, column.title), commandLine(text));
      else if (column.kind === "log") wide.push(el("h4", {}, column.title), preformatted(text, column.title));
      else list.append(el("div", {}, el("dt", {}, column.title), el("dd", {}, text)));
    }
    return el("div", { class: "inner" }, list, ...wide);
  }

  const root = el("div", { class: "tableblock" }, makeControls(), count, el("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": spec.caption }, table), more);

  function makeControls() {
    const bar = el("div", { class: "controls", role: "search" });
    if (spec.search && spec.rows.length > 1) {
      const input = el("input", { type: "search", placeholder: "words, all of which must occur" });
      let timer = 0;
      input.addEventListener("input", () => {
        clearTimeout(timer);
        timer = setTimeout(() => {
          state.words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
          refresh();
        }, 120);
      });
      bar.append(el("label", {}, "Filter ", input));
    }
    for (const column of columns.filter((c) => c.choices)) {
      const values = [...new Set(spec.rows.map((row) => shownOf(row[column.index])))].sort(collator.compare);
      if (values.length < 2 || values.length > 200) continue;
      const select = el("select", {}, el("option", { value: "-1" }, "all"), ...values.map((value, i) => el("option", { value: String(i) }, value || "(none)")));
      select.addEventListener("change", () => {
        if (select.value === "-1") state.choices.delete(column.index);
        else state.choices.set(column.index, values[Number(select.value)]);
        refresh();
      });
      bar.append(el("label", {}, column.title + " ", select));
    }
    return bar.childElementCount ? bar : null;
  }

  refresh();
  return root;
}

/** Colour by a ratio: blue above 1, orange below, deeper further away; full at a factor of four. The number is in the cell. */
function paintHeat(element, ratio) {
  const depth = Math.min(1, Math.abs(Math.log2(ratio)) / 2);
  element.style.setProperty("--depth", `${Math.round(depth * 70)}%`);
  element.classList.add(ratio >= 1 ? "better" : "worse");
}
