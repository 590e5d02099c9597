// The halting curve and the memory's attention.
"use strict";

// The signal after each loop, with a threshold that can be dragged or moved by keys. `moved(threshold)` is told.
// Returns the drawing and a function that shows another threshold and depth.
function haltingChart(trace, rule, width, moved) {
  const loops = trace.loops.length;
  const step = (width - 48) / loops;
  const roomy = step > 46; // for the answers below the loops
  const height = width < 480 ? 190 : 230;
  const box = { left: 34, right: width - 14, top: 16, bottom: height - (roomy ? 40 : 24) };
  const x = (t) => box.left + (t - 0.5) * step;
  const y = (value) => box.bottom - value * (box.bottom - box.top);
  const { stops, value, says } = SIGNALS[rule.signal];
  const points = trace.loops.map((loop) => [x(loop.loop), y(value(loop))]);

  const band = svg("rect", { class: "band", y: box.top, width: step, height: box.bottom - box.top, rx: 4 });
  const stopSide = svg("rect", { class: "stop-side", x: box.left, width: box.right - box.left });
  const line = svg("line", { class: "threshold", x1: box.left, x2: box.right });
  const knob = svg("circle", { class: "knob", cx: box.right, r: 8 });
  const label = svg("text", { class: "threshold-label" });
  const grip = svg("rect", { class: "grip", x: box.left, width: box.right - box.left + 12, height: 28 });
  const handle = svg(
    "g",
    { class: "handle", tabindex: 0, role: "slider", "aria-label": "Threshold", "aria-valuemin": 0, "aria-valuemax": 1 },
    line,
    label,
    knob,
    grip,
  );
  const axis = [0, 0.5, 1].map((tick) => [
    svg("line", { class: "rule", x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) }),
    svg("text", { class: "tick", x: box.left - 8, y: y(tick) + 4, "text-anchor": "end" }, String(tick)),
  ]);
  const names = trace.loops.map((loop, i) => [
    svg("text", { class: "tick", x: points[i][0], y: box.bottom + 15, "text-anchor": "middle" }, String(loop.loop)),
    roomy
      ? svg(
          "text",
          { class: `tick ${verdict(loop)}`, x: points[i][0], y: box.bottom + 30, "text-anchor": "middle" },
          short(visible(loop.answer), Math.floor(step / 7.4)),
        )
      : null,
  ]);
  const floorName = rule.floor > 2 && step > 30 ? `not asked before loop ${rule.floor}` : "";
  const floorWidth = textWidth(floorName, 11);
  const floorAt = clearest(
    [box.top + 12, box.bottom - 7].map((at) => ({ x: box.left + 6, y: at })),
    floorWidth,
    points,
  );
  const taken = floorName ? [0, 1, 2, 3, 4].map((i) => [floorAt.x + (i * floorWidth) / 4, floorAt.y - 4]) : [];
  const floor =
    rule.floor > 1
      ? [
          svg("rect", {
            class: "floor",
            x: box.left,
            y: box.top,
            width: step * Math.min(rule.floor - 1, loops),
            height: box.bottom - box.top,
          }),
          floorName ? svg("text", { class: "tick", x: floorAt.x, y: floorAt.y }, floorName) : null,
        ]
      : [];
  const drawing = figure(
    width,
    height,
    `${SIGNALS[rule.signal].label}: ${says}, after each loop`,
    "group",
    stopSide,
    ...floor,
    ...axis.flat(),
    band,
    svg("path", { class: "curve", d: points.map(([px, py], i) => `${i ? "L" : "M"}${px},${py}`).join("") }),
    ...points.map(([px, py], i) =>
      svg(
        "circle",
        { class: `point ${verdict(trace.loops[i])}`, cx: px, cy: py, r: 4.5 },
        svg("title", {}, `loop ${i + 1}: ${number(value(trace.loops[i]))}`),
      ),
    ),
    ...names.flat(),
    handle,
  );

  function show(threshold, depth) {
    const at = y(threshold);
    band.setAttribute("x", x(depth) - step / 2);
    for (const end of ["y1", "y2"]) line.setAttribute(end, at);
    knob.setAttribute("cy", at);
    grip.setAttribute("y", at - 14);
    label.textContent = `stop ${stops} ${threshold.toFixed(2)}`;
    const wide = textWidth(label.textContent, 12, 600);
    const heights = [at - 8, at + 18].filter((to) => to > box.top + 10 && to < box.bottom);
    const starts = [box.right - 14 - wide, (box.left + box.right - wide) / 2, box.left + 6];
    const places = starts.flatMap((from) => heights.map((to) => ({ x: from, y: to })));
    const place = clearest(places, wide, points, taken);
    label.setAttribute("x", place.x);
    label.setAttribute("y", place.y);
    handle.setAttribute("aria-valuenow", threshold.toFixed(2));
    handle.setAttribute("aria-valuetext", `${threshold.toFixed(2)}: stops after loop ${depth}`);
    const [from, to] = stops === "below" ? [at, box.bottom] : [box.top, at];
    stopSide.setAttribute("y", from);
    stopSide.setAttribute("height", Math.max(0, to - from));
  }
  const set = (threshold) => moved(Math.min(1, Math.max(0, Math.round(threshold * 100) / 100)));
  handle.addEventListener("pointerdown", (event) => {
    handle.setPointerCapture(event.pointerId);
    event.preventDefault();
    handle.focus();
  });
  handle.addEventListener("pointermove", (event) => {
    if (!handle.hasPointerCapture(event.pointerId)) return;
    const frame = drawing.getBoundingClientRect();
    set((box.bottom - (event.clientY - frame.top) * (height / frame.height)) / (box.bottom - box.top));
  });
  handle.addEventListener("keydown", (event) => {
    const by = {
      ArrowUp: 0.01,
      ArrowRight: 0.01,
      ArrowDown: -0.01,
      ArrowLeft: -0.01,
      PageUp: 0.1,
      PageDown: -0.1,
      Home: -1,
      End: 1,
    }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    set(Number(handle.getAttribute("aria-valuenow")) + by);
  });
  return { drawing, show };
}

// The first of some places for a text where it hides least: of the curve through these points, and of what else is there.
function clearest(places, wide, points, others = []) {
  const between = ([x0, y0], [x1, y1]) =>
    Array.from({ length: 9 }, (_, i) => [x0 + ((x1 - x0) * i) / 8, y0 + ((y1 - y0) * i) / 8]);
  const marks = [...points.flatMap((point, i) => (i ? between(points[i - 1], point) : [point])), ...others];
  const hidden = ({ x, y }) =>
    marks.filter(([px, py]) => px > x - 7 && px < x + wide + 7 && py > y - 17 && py < y + 9).length;
  return places.reduce((best, place) => (hidden(place) < hidden(best) ? place : best));
}

const verdict = (loop) => (loop.right === true ? "right" : loop.right === false ? "wrong" : "");

const DISTANCES = 5; // that have a colour of their own

// Which colour is how many loops back.
function distanceLegend(window, width) {
  let x = 0,
    y = 0;
  const keys = Array.from({ length: Math.min(window, DISTANCES) }, (_, i) => {
    const more = i + 1 === DISTANCES && window > DISTANCES ? " and more" : "";
    const name = more ? `${i + 1}${more} loops back` : `${counted(i + 1, "loop")} back`;
    const wide = 34 + textWidth(name, 12);
    if (x && x + wide > width) [x, y] = [0, y + 19];
    const key = [
      svg("rect", { class: `back-${i + 1}`, x, y: y + 2, width: 12, height: 12, rx: 3 }),
      svg("text", { class: "key", x: x + 18, y: y + 12 }, name),
    ];
    x += wide;
    return key;
  });
  return figure(width, y + 20, "Colours of the distances", "img", ...keys.flat());
}

// One small chart for each head of each looped layer: how the weights over 1, 2, … loops back share each loop.
function attentionChart(trace, width, position) {
  const heads = Math.max(0, ...trace.block.map((layer) => layer.slopes.length));
  if (!heads || !trace.loops.some((loop) => loop.layers.some((layer) => layer.attention))) return null;
  const gap = 14,
    narrowest = 140, // as long as a title
    tall = 52,
    head = 34,
    foot = 16;
  const rows = Math.ceil(heads / Math.max(1, Math.floor((width + gap) / (narrowest + gap))));
  const columns = Math.ceil(heads / rows);
  const wide = (width - gap * (columns - 1)) / columns;
  const height = trace.block.length * rows * (tall + head + foot);
  const pictures = [];
  trace.block.forEach((layer, j) => {
    for (let h = 0; h < heads; h++) {
      const left = (h % columns) * (wide + gap);
      const top = (j * rows + Math.floor(h / columns)) * (tall + head + foot) + head;
      const bar = wide / trace.loops.length;
      const back = meanDistance(trace, j, h, position);
      pictures.push(
        svg("text", { class: "small-title", x: left, y: top - 19 }, `layer ${layer.index} · head ${h + 1}`),
        svg(
          "text",
          { class: "tick", x: left, y: top - 6 },
          `slope ${number(layer.slopes[h], 2)} · ${back === null ? "not read" : `${back.toFixed(2)} back`}`,
        ),
        svg("rect", { class: "frame", x: left, y: top, width: wide, height: tall }),
      );
      trace.loops.forEach((loop, i) => {
        const weights = attentionAt(loop, j, h, position);
        let from = top + tall;
        (weights ?? []).forEach((weight, b) => {
          from -= weight * tall;
          const said = `loop ${loop.loop}: ${weights.map((w, n) => `${n + 1} back ${w.toFixed(2)}`).join(", ")}`;
          pictures.push(
            svg(
              "rect",
              {
                class: `back back-${Math.min(b + 1, DISTANCES)}`,
                x: left + i * bar + 0.5,
                y: from,
                width: Math.max(1, bar - 1),
                height: weight * tall,
              },
              svg("title", {}, said),
            ),
          );
        });
      });
      pictures.push(
        svg("text", { class: "tick", x: left, y: top + tall + 11 }, "1"),
        svg(
          "text",
          { class: "tick", x: left + wide, y: top + tall + 11, "text-anchor": "end" },
          String(trace.loops.length),
        ),
      );
    }
  });
  return figure(width, height, "Memory attention of each head after each loop", "img", ...pictures);
}
