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
  const ring = svg(
    "g",
    { class: "ring" },
    ...["beneath", "above"].map((name) =>
      svg("rect", { class: name, width: layout.wide + 1, height: layout.row + 1, rx: 2 }),
    ),
  );
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
      ring.setAttribute("transform", `translate(${layout.x(p) - 0.5},${layout.y(p, t) - 0.5})`);
    },
    mark(depth) {
      for (const name of drawing.querySelectorAll(".loop-name"))
        name.classList.toggle("chosen", Number(name.dataset.loop) === depth);
    },
  };
}

// Where a key leads from a cell. Home and End stay in the row, with Ctrl they go to the corners, as in other grids.
function stepped(event, { position, loop }, tokens, loops) {
  const last = [tokens - 1, loops];
  const [p, t] = {
    ArrowLeft: [position - 1, loop],
    ArrowRight: [position + 1, loop],
    ArrowUp: [position, loop - 1],
    ArrowDown: [position, loop + 1],
    Home: [0, event.ctrlKey ? 1 : loop],
    End: [last[0], event.ctrlKey ? last[1] : loop],
  }[event.key] ?? [null, null];
  if (p === null) return null;
  return { position: Math.min(last[0], Math.max(0, p)), loop: Math.min(last[1], Math.max(1, t)) };
}

// Which colour is how much.
function scaleLegend(range, metric, width) {
  const { unit } = METRICS[metric];
  const [least, most] = [number(range[0], 2), `≥ ${number(range[1], 2)}`];
  const colour = colours();
  const left = textWidth(least, 12) + 8;
  const right = left + 128 + textWidth(most, 12);
  const below = right + 16 + textWidth(unit, 12) > width;
  const shades = Array.from({ length: 24 }, (_, i) =>
    svg("rect", { x: left + i * 5, y: 3, width: 5.2, height: 10, fill: colour(shareOf(i / 23, [0, 1], metric)) }),
  );
  const text = (x, y, said) => svg("text", { class: "key", x, y }, said);
  return figure(
    width,
    below ? 38 : 20,
    `From ${least} to ${most} ${unit}`,
    "img",
    text(0, 12, least),
    ...shades,
    text(left + 128, 12, most),
    below ? text(0, 30, unit) : text(right + 16, 12, unit),
  );
}
