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
  const label = svg("text", { class: "threshold-label", x: box.right - 14, "text-anchor": "end" });
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
          svg(
            "text",
            { class: "tick", x: box.left + 6, y: box.top + 12 },
            rule.floor > 2 && step > 30 ? `not asked before loop ${rule.floor}` : "",
          ),
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
    label.setAttribute("y", at > box.top + 20 ? at - 8 : at + 18);
    label.textContent = `stop ${stops} ${threshold.toFixed(2)}`;
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
    const by = { ArrowUp: 0.01, ArrowRight: 0.01, ArrowDown: -0.01, ArrowLeft: -0.01, PageUp: 0.1, PageDown: -0.1 }[
      event.key
    ];
    if (by === undefined) return;
    event.preventDefault();
    set(Number(handle.getAttribute("aria-valuenow")) + by);
  });
  return { drawing, show };
}

const verdict = (loop) => (loop.right === true ? "right" : loop.right === false ? "wrong" : "");

// One small chart for each head of each looped layer: how the weights over 1, 2, … loops back share each loop.
function attentionChart(trace, width, position) {
  const heads = Math.max(0, ...trace.block.map((layer) => layer.slopes.length));
  if (!heads || !trace.loops.some((loop) => loop.layers.some((layer) => layer.attention))) return null;
  const columns = width < 480 ? Math.min(2, heads) : heads;
  const gap = 14,
    tall = 52,
    head = 34,
    foot = 16;
  const wide = (width - gap * (columns - 1)) / columns;
  const rows = Math.ceil(heads / columns);
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
                class: `back back-${Math.min(b + 1, 5)}`,
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
