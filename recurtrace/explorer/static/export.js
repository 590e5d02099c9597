// Saving what is on the page: the view as SVG or PNG, a trace as JSON, everything as one page.
"use strict";

const PAINTED = [
  "fill",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "opacity",
  "fill-opacity",
  "font-size",
  "font-weight",
  "font-family",
  "text-anchor",
  "overflow",
];

// Texts and drawings below each other, in a picture.
class Sheet {
  constructor(width) {
    Object.assign(this, { width, height: 0, nodes: [] });
  }

  text(text, size, colour = "--ink", weight = 400) {
    for (const line of wrapped(text, size, this.width, weight)) {
      this.height += Math.round(1.45 * size);
      const look = { fill: variable(colour), "font-size": size, "font-weight": weight, "font-family": FONT };
      this.nodes.push(svg("text", { ...look, y: this.height - 0.35 * size }, line));
    }
  }

  drawing(original) {
    const copy = painted(original);
    copy.setAttribute("y", this.height);
    this.nodes.push(copy);
    this.gap(Number(original.getAttribute("height")));
  }

  gap(height) {
    this.height += height;
  }
}

// All panels side by side, with their colours written into them.
function wholeDrawing(panels) {
  const margin = 20;
  const sheets = panels.map((panel, i) => panelSheet(panel, panels.length > 1 ? `${"AB"[i]} ` : ""));
  const height = Math.max(...sheets.map((sheet) => sheet.height)) + 2 * margin;
  let width = margin;
  const columns = sheets.map((sheet) => {
    const column = svg("g", { transform: `translate(${width},${margin})` }, ...sheet.nodes);
    width += sheet.width + margin;
    return column;
  });
  return svg(
    "svg",
    { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}` },
    svg("rect", { width, height, fill: variable("--card") }),
    ...columns,
  );
}

function panelSheet(panel, name) {
  const { trace, depth, view } = panel;
  const sheet = new Sheet(panel.drawn);
  sheet.text(`${name}Stops after loop ${depth}, answers “${visible(trace.loops[depth - 1].answer)}”`, 16, "--ink", 600);
  sheet.text(panel.tags.join(" · "), 12, "--muted");
  sheet.text(trace.prompt, 13);
  sheet.text(`Answer after each loop: ${answersInShort(trace)}`, 12, "--muted");
  const layer = METRICS[view.metric].byLayer ? trace.block[view.layer ?? NaN] : undefined;
  const sections = [
    [`When to stop: ${SIGNALS[panel.rule.signal].label}`, ["halting"]],
    [
      `Tokens and loops: ${METRICS[view.metric].label.toLowerCase()}${layer ? `, layer ${layer.index}` : ""}`,
      ["scale", "field"],
    ],
    ["What the memory looks at", ["distances", "attention"]],
  ];
  for (const [title, parts] of sections) {
    sheet.gap(16);
    sheet.text(title, 13, "--ink", 600);
    sheet.gap(6);
    for (const part of parts.flatMap((one) => [...panel.part(one).children]))
      if (part instanceof SVGElement) sheet.drawing(part);
      else sheet.text(part.textContent, 12, "--muted");
  }
  return sheet;
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
const LONGEST = 16_000; // pixels that a canvas may have on a side

function save(name, blob) {
  const link = html("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

const EXPORTS = {
  SVG: {
    label: "view as SVG",
    run: (panel) =>
      save("trace.svg", new Blob([asText(wholeDrawing(panel.actions.shown()))], { type: "image/svg+xml" })),
  },
  PNG: {
    label: "view as PNG",
    run: async (panel) => {
      const drawing = wholeDrawing(panel.actions.shown());
      const image = new Image();
      image.src = URL.createObjectURL(new Blob([asText(drawing)], { type: "image/svg+xml" }));
      await image.decode();
      URL.revokeObjectURL(image.src);
      const sides = ["width", "height"].map((side) => Number(drawing.getAttribute(side)));
      const [width, height] = sides.map((side) => side * Math.min(2, LONGEST / Math.max(...sides)));
      const canvas = html("canvas", { width, height });
      canvas.getContext("2d").drawImage(image, 0, 0, width, height);
      canvas.toBlob((blob) => save("trace.png", blob), "image/png");
    },
  },
  JSON: {
    label: "trace as JSON",
    run: (panel) => save("trace.json", new Blob([JSON.stringify(panel.trace)], { type: "application/json" })),
  },
  // The traces stand in an empty page where `["traces"]` was, as in explorer/page.py.
  page: {
    label: "page as HTML",
    run: async (panel) => {
      const empty = GIVEN.alone ? `<!doctype html>\n${EMPTY}` : await (await fetch("empty.html")).text();
      const data = JSON.stringify(panel.actions.shown().map((one) => one.trace)).replaceAll("<", "\\u003c");
      save("trace.html", new Blob([empty.replace('["traces"]', () => data)], { type: "text/html" }));
    },
  },
};
