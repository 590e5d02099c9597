// Making elements, and colours from the page's own variables.
"use strict";

function element(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(node.style, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}
const html = (tag, attributes, ...children) => element(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  element(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

// `role` is group where something inside can be reached by keys.
function figure(width, height, label, role, ...children) {
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role, "aria-label": label }, ...children);
}

const FONT = getComputedStyle(document.body).fontFamily;
const pen = document.createElement("canvas").getContext("2d");
function textWidth(text, size, weight = 400) {
  pen.font = `${weight} ${size}px ${FONT}`;
  return pen.measureText(text).width;
}

// Lines that are not wider; a word that is, such as a long name, has a line of its own.
function wrapped(text, size, width, weight = 400) {
  return text.split("\n").flatMap((paragraph) => {
    const lines = [""];
    for (const word of paragraph.split(" ")) {
      const longer = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
      if (lines.at(-1) && textWidth(longer, size, weight) > width) lines.push(word);
      else lines[lines.length - 1] = longer;
    }
    return lines;
  });
}

// A colour of the page as rgb(…), whatever the theme.
function variable(name) {
  const probe = tip.node();
  probe.style.outlineColor = `var(${name})`;
  return getComputedStyle(probe).outlineColor;
}

// A colour between the page's --low, --mid and --high; for a share from 0 to 1.
function colours() {
  const stops = ["--low", "--mid", "--high"].map((name) =>
    variable(name)
      .match(/[\d.]+/g)
      .slice(0, 3)
      .map(Number),
  );
  return (share) => {
    const x = Math.min(Math.max(share, 0), 1) * 2;
    const [from, to, part] = x < 1 ? [stops[0], stops[1], x] : [stops[1], stops[2], x - 1];
    return `rgb(${from.map((value, i) => Math.round(value + (to[i] - value) * part)).join(",")})`;
  };
}

const tip = {
  node: () => document.getElementById("tip"),
  show(text, event) {
    const node = tip.node();
    node.textContent = text;
    node.hidden = false;
    const left = Math.min(event.clientX + 14, document.documentElement.clientWidth - node.offsetWidth - 8);
    Object.assign(node.style, { left: `${Math.max(8, left)}px`, top: `${event.clientY + 18}px` });
  },
  hide: () => (tip.node().hidden = true),
};
