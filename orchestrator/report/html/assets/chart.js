// Charts: plotly draws them when they come into sight, and again when the reader's colour scheme changes.

const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 640px)");
const calm = matchMedia("(prefers-reduced-motion: reduce)");

// Told apart by colour-blind readers (after Okabe and Ito), and by marker and dash as well.
const COLORS = {
  light: ["#0060a8", "#c04a00", "#007a5a", "#a8437f", "#7a6000", "#1f8fbf", "#5b4bb0", "#555555"],
  dark: ["#62b5f0", "#ff9a55", "#3fcf9f", "#eb92c4", "#e6cf4a", "#9bdcff", "#b3a6ff", "#c0c0c0"],
};
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down", "pentagon", "hexagon"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const PATTERNS = ["", "/", "x", ".", "-", "\\", "+", "|"];

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function themedTrace(trace) {
  const { series, muted, hollow, ...rest } = trace;
  const palette = COLORS[dark.matches ? "dark" : "light"];
  const themed = structuredClone(rest);
  if (series === undefined && !muted) return themed;
  const color = muted ? css("--muted") : palette[series % palette.length];
  const index = muted ? 0 : series;
  themed.marker = { color, symbol: SYMBOLS[index % SYMBOLS.length], size: 8, ...themed.marker };
  if (hollow) themed.marker.symbol = hollow.map((open) => themed.marker.symbol + (open ? "-open" : ""));
  if (themed.type === "bar") {
    const shape = PATTERNS[index % PATTERNS.length];
    themed.marker = { color, line: { width: 0 }, pattern: { shape, size: 7, solidity: 0.25, bgcolor: color, fgcolor: css("--page") }, ...rest.marker };
  }
  if (themed.type === "box") Object.assign(themed, { line: { color, width: 1.5 }, fillcolor: color + "33" });
  else if (themed.type !== "bar") themed.line = { color, dash: DASHES[index % DASHES.length], width: 2, ...themed.line };
  for (const axis of ["error_x", "error_y"]) if (themed[axis]) themed[axis] = { color, thickness: 1.3, width: 3, ...themed[axis] };
  return themed;
}

function themedLayout(figure) {
  const grid = { gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--muted"), automargin: true };
  const small = narrow.matches;
  const layout = structuredClone(figure.layout);
  for (const name of Object.keys(layout)) if (/^[xy]axis\d*$/.test(name)) layout[name] = { ...grid, ...layout[name] };
  return {
    xaxis: grid,
    yaxis: grid,
    ...layout,
    height: figure.height + (small ? 60 : 0),
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: small ? 11 : 13, color: css("--text") },
    hoverlabel: { bgcolor: css("--panel"), bordercolor: css("--muted"), font: { color: css("--text") }, align: "left", namelength: -1 },
    margin: { l: small ? 44 : 64, r: 14, t: 14, b: 48 },
    legend: { orientation: "h", yanchor: "bottom", y: 1.02, xanchor: "left", x: 0, ...layout.legend },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--muted"), activecolor: css("--text") },
    dragmode: false, // so that a finger on a chart scrolls the page; the bar above it has zooming
  };
}

function makeChart(spec) {
  const plot = el("div", { class: "plot", role: "img", "aria-label": `${spec.title}. ${spec.summary}` });
  const figure = el("figure", { class: "chart" }, el("figcaption", {}, el("strong", {}, spec.title), " ", spec.summary));
  let chosen = 0;
  let drawn = false;
  if (spec.figures.length > 1) {
    const select = el("select", {}, ...spec.figures.map((f, i) => el("option", { value: String(i) }, f.name)));
    select.addEventListener("change", () => {
      chosen = Number(select.value);
      draw();
    });
    figure.append(el("label", { class: "choose" }, spec.choose + " ", select));
  }
  figure.append(plot);
  plot.style.minHeight = `${Math.max(...spec.figures.map((f) => f.height))}px`;

  function draw() {
    drawn = true;
    const chosenFigure = spec.figures[chosen];
    plot.style.minHeight = `${chosenFigure.height}px`;
    Plotly.react(plot, chosenFigure.traces.map(themedTrace), themedLayout(chosenFigure), {
      responsive: true,
      displaylogo: false,
      scrollZoom: false,
      showTips: false,
      modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
      ...(calm.matches ? { transition: { duration: 0 } } : {}),
    });
  }

  new IntersectionObserver(
    (entries, observer) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      draw();
    },
    { rootMargin: "400px" },
  ).observe(plot);
  for (const query of [dark, narrow]) query.addEventListener("change", () => drawn && draw());
  addEventListener("beforeprint", () => drawn || draw());
  return figure;
}
