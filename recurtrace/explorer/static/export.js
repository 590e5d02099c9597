// Saving what is on the page: drawings as SVG or PNG, the trace as JSON, everything as one page.
"use strict";

const PAINTED = [
  "fill",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "paint-order",
  "opacity",
  "fill-opacity",
  "font-size",
  "font-weight",
  "font-family",
  "text-anchor",
];

// A panel's drawings, one below the other, with their colours written into them.
function wholeDrawing(panel) {
  const gap = 34,
    margin = 20;
  const titles = { halting: "When to stop", field: "Tokens and loops", attention: "What the memory looks at" };
  const drawings = Object.entries(titles)
    .map(([name, title]) => [title, panel.part(name).querySelector("svg")])
    .filter(([, drawing]) => drawing);
  const { trace } = panel;
  const text = { fill: variable("--ink"), "font-family": "system-ui, sans-serif" };
  const lines = [
    `${modelName(trace.model)}: stops after loop ${panel.depth}, answers “${visible(trace.loops[panel.depth - 1].answer)}”`,
    `answer after each loop: ${answersInShort(trace)}`,
  ];
  const parts = lines.map((line, i) =>
    svg("text", { ...text, x: margin, y: 30 + 22 * i, "font-size": i ? 11 : 15 }, line),
  );
  let y = 78;
  for (const [title, drawing] of drawings) {
    const copy = painted(drawing);
    copy.setAttribute("x", margin);
    copy.setAttribute("y", y + 12);
    const heading =
      title === "Tokens and loops" ? `${title}: ${METRICS[panel.view.metric].label.toLowerCase()}` : title;
    parts.push(svg("text", { ...text, x: margin, y, "font-size": 13, "font-weight": 600 }, heading), copy);
    y += Number(drawing.getAttribute("height")) + gap;
  }
  const width = panel.drawn + 2 * margin;
  return svg(
    "svg",
    { xmlns: "http://www.w3.org/2000/svg", width, height: y, viewBox: `0 0 ${width} ${y}` },
    svg("rect", { width, height: y, fill: variable("--card") }),
    ...parts,
  );
}

function painted(drawing) {
  const copy = drawing.cloneNode(true);
  const originals = [drawing, ...drawing.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((node, i) => {
    const style = getComputedStyle(originals[i]);
    for (const name of PAINTED) node.setAttribute(name, style.getPropertyValue(name));
    node.removeAttribute("class");
  });
  return copy;
}

const asText = (drawing) => new XMLSerializer().serializeToString(drawing);

function save(name, blob) {
  const link = html("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

const EXPORTS = {
  SVG: (panel) => save("trace.svg", new Blob([asText(wholeDrawing(panel))], { type: "image/svg+xml" })),
  PNG: async (panel) => {
    const drawing = wholeDrawing(panel);
    const image = new Image();
    image.src = URL.createObjectURL(new Blob([asText(drawing)], { type: "image/svg+xml" }));
    await image.decode();
    const [width, height] = ["width", "height"].map((side) => 2 * Number(drawing.getAttribute(side)));
    const canvas = html("canvas", { width, height });
    canvas.getContext("2d").drawImage(image, 0, 0, width, height);
    canvas.toBlob((blob) => save("trace.png", blob), "image/png");
  },
  JSON: (panel) => save("trace.json", new Blob([JSON.stringify(panel.trace)], { type: "application/json" })),
  // The traces stand in an empty page where `["traces"]` was, as in explorer/page.py.
  page: async (panel) => {
    const empty = GIVEN.alone ? null : await (await fetch("empty.html")).text();
    const data = JSON.stringify(panel.actions.shown()).replaceAll("<", "\\u003c");
    const whole = empty === null ? `<!doctype html>\n${ORIGINAL}` : empty.replace('["traces"]', () => data);
    save("trace.html", new Blob([whole], { type: "text/html" }));
  },
};
