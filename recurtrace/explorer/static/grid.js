// Tokens × loops, wrapped like text so that it fits any width.
"use strict";

function gridLayout(trace, width) {
  const rail = 24,
    overhang = 26,
    room = width - rail - overhang; // the last names lean over the edge
  const most = Math.max(4, Math.floor(room / (width < 480 ? 15 : 17)));
  const blocks = Math.ceil(trace.tokens.length / most);
  const perRow = Math.ceil(trace.tokens.length / blocks); // lines of even length
  const wide = Math.min(28, room / perRow);
  const row = 14,
    head = 58;
  const tall = head + trace.loops.length * row + 16;
  return {
    rail,
    wide,
    row,
    head,
    height: blocks * tall,
    x: (p) => rail + (p % perRow) * wide,
    y: (p, t) => Math.floor(p / perRow) * tall + head + (t - 1) * row,
  };
}

// `chosen` is told a position and a loop. Returns the drawing, and functions that mark the selected cell and the depth.
function tokenGrid(trace, metric, layer, range, width, chosen) {
  const layout = gridLayout(trace, width);
  const colour = colours();
  const { value, label } = METRICS[metric];
  const parts = [];
  trace.tokens.forEach((token, p) => {
    const x = layout.x(p) + layout.wide / 2,
      y = layout.y(p, 1) - 6;
    parts.push(
      svg(
        "text",
        { class: "token", transform: `translate(${x + 3},${y}) rotate(-55)`, "data-p": p },
        short(visible(token), 9),
      ),
    );
    trace.loops.forEach((loop) => {
      const found = value(loop, p, layer);
      const fill = found === null || !range ? "none" : colour(shareOf(found, range, metric));
      parts.push(
        svg("rect", {
          class: found === null ? "cell empty" : "cell",
          x: layout.x(p) + 0.5,
          y: layout.y(p, loop.loop) + 0.5,
          width: layout.wide - 1,
          height: layout.row - 1,
          rx: 1.5,
          fill,
          "data-p": p,
          "data-t": loop.loop,
        }),
      );
    });
  });
  const firsts = trace.tokens.map((_, p) => p).filter((p) => layout.x(p) === layout.rail);
  const rails = firsts.flatMap((p) =>
    trace.loops.map((loop) =>
      svg(
        "text",
        {
          class: "tick loop-name",
          x: layout.rail - 6,
          y: layout.y(p, loop.loop) + 10.5,
          "text-anchor": "end",
          "data-loop": loop.loop,
        },
        String(loop.loop),
      ),
    ),
  );
  const ring = svg("rect", { class: "ring", width: layout.wide + 1, height: layout.row + 1, rx: 2 });
  const drawing = figure(
    width,
    layout.height,
    `${label} of each token after each loop`,
    "img",
    ...parts,
    ...rails,
    ring,
  );
  const place = (event) => {
    const { p, t } = event.target.dataset ?? {};
    return t === undefined ? null : [Number(p), Number(t)];
  };
  drawing.addEventListener("pointermove", (event) => {
    const at = place(event);
    if (!at) return tip.hide();
    tip.show(
      `“${visible(trace.tokens[at[0]])}” · loop ${at[1]} · ${label.toLowerCase()} ${number(value(trace.loops[at[1] - 1], at[0], layer))}`,
      event,
    );
  });
  drawing.addEventListener("pointerleave", tip.hide);
  drawing.addEventListener("click", (event) => {
    const at = place(event);
    if (at) chosen(...at);
  });
  return {
    drawing,
    select(p, t) {
      ring.setAttribute("x", layout.x(p) - 0.5);
      ring.setAttribute("y", layout.y(p, t) - 0.5);
    },
    mark(depth) {
      for (const name of drawing.querySelectorAll(".loop-name"))
        name.classList.toggle("chosen", Number(name.dataset.loop) === depth);
    },
  };
}

const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

// The parts of the line that says which colour is how much.
function legend(range, metric) {
  if (!range) return ["No memory was read in this trace."];
  const colour = colours();
  const shades = Array.from({ length: 24 }, (_, i) =>
    svg("rect", { x: i * 5, y: 0, width: 5.2, height: 10, fill: colour(shareOf(i / 23, [0, 1], metric)) }),
  );
  const strip = svg("svg", { width: 120, height: 10, "aria-hidden": "true" }, ...shades);
  return [number(range[0], 2), strip, `≥ ${number(range[1], 2)}`, html("span", {}, METRICS[metric].unit)];
}
