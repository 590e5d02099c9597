// Everything about one trace. Panels share what is looked at (`view`); each has its own threshold.
"use strict";

const INSIDE = ["gate", "memory", "change", "norm"];

class Panel {
  constructor(trace, view, actions) {
    Object.assign(this, { trace, view, actions, rule: firstRule(trace) });
    this.node = document.getElementById("panel").content.firstElementChild.cloneNode(true);
    this.fill();
    this.listen();
    new ResizeObserver(() => this.width() !== this.drawn && requestAnimationFrame(() => this.draw())).observe(
      this.part("halting"),
    );
  }

  part(name) {
    return this.node.querySelector(`.${name}`);
  }

  get depth() {
    return chosenDepth(this.trace, this.rule);
  }

  // The selected cell, within this trace: the last token and the chosen depth until something is selected.
  get selected() {
    const position = Math.min(this.view.position ?? Infinity, this.trace.tokens.length - 1);
    return { position, loop: Math.min(this.view.loop ?? this.depth, this.trace.loops.length) };
  }

  get tags() {
    const { trace } = this;
    const remembers = trace.memory_window ? `memory of ${counted(trace.memory_window, "loop")}` : "no memory";
    const memory = trace.memory_off_from ? `memory off from loop ${trace.memory_off_from}` : remembers;
    return [modelName(trace.model), memory, counted(trace.tokens.length, "token")];
  }

  width() {
    return this.part("halting").clientWidth;
  }

  // What stays as it is.
  fill() {
    const { trace } = this;
    this.part("tags").prepend(...this.tags.map((tag) => html("span", {}, tag)));
    this.part("prompt").textContent = trace.prompt;
    this.part("headless").hidden = trace.head !== null;
    const signals = Object.entries(SIGNALS).filter(([name]) => name !== "head" || trace.head);
    this.part("signal").append(...signals.map(([name, one]) => html("option", { value: name }, one.label)));
    this.part("metric").append(
      ...Object.entries(METRICS).map(([name, one]) => html("option", { value: name }, one.label)),
    );
    this.part("layer").append(...trace.block.map((one, j) => html("option", { value: j }, `layer ${one.index}`)));
    this.part("answers").append(...answerCards(trace.loops));
    const names = ["", ...INSIDE].map((name) => html("th", { scope: "col" }, name));
    this.node.querySelector("thead").append(html("tr", {}, ...names));
    const saves = Object.entries(EXPORTS).map(([kind, { label }]) =>
      html("button", { type: "button", class: "second", "data-save": kind }, label),
    );
    this.part("exports").append(...saves);
  }

  listen() {
    const on = (name, event, act) => this.part(name).addEventListener(event, act);
    on("close", "click", () => this.actions.close(this));
    on("signal", "change", ({ target }) => this.follow(target.value));
    on("metric", "change", ({ target }) => this.actions.look({ metric: target.value }));
    on("layer", "change", ({ target }) =>
      this.actions.look({ layer: target.value === "" ? null : Number(target.value) }),
    );
    on("whose", "change", ({ target }) => this.actions.look({ whole: target.value === "whole" }));
    on("field", "keydown", (event) => this.step(event));
    on("answers", "click", ({ target }) => {
      const card = target.closest("[data-t]");
      if (card) this.actions.look({ loop: Number(card.dataset.t) });
    });
    on("exports", "click", ({ target }) => EXPORTS[target.dataset.save]?.run(this));
  }

  step(event) {
    const next = stepped(event, this.selected, this.trace.tokens.length, this.trace.loops.length);
    if (!next) return;
    event.preventDefault();
    this.actions.look(next);
  }

  draw() {
    this.drawn = this.width();
    if (!this.drawn) return;
    this.drawHalting();
    this.drawGrid();
    this.drawAttention();
    this.stop(this.rule.threshold);
    this.select();
  }

  drawHalting() {
    this.part("signal").value = this.rule.signal;
    this.chart = haltingChart(this.trace, this.rule, this.drawn, (threshold) => this.stop(threshold));
    this.part("halting").replaceChildren(this.chart.drawing);
  }

  // Of the looped layers, for the chosen colours; null is the whole block.
  get layer() {
    return METRICS[this.view.metric].byLayer ? this.view.layer : null;
  }

  drawGrid() {
    const { metric, layer, range } = this.view;
    this.part("metric").value = metric;
    this.part("layer").value = layer ?? "";
    this.part("layer").disabled = !METRICS[metric].byLayer;
    const missing = this.layer >= this.trace.block.length;
    const nothing = missing ? "This model loops fewer layers." : range ? "" : "No memory was read in this trace.";
    this.part("scale").replaceChildren(nothing ? html("span", {}, nothing) : scaleLegend(range, metric, this.drawn));
    const chosen = (position, loop) => this.actions.look({ position, loop });
    this.cells = tokenGrid(this.trace, metric, this.layer, range, this.drawn, chosen);
    this.part("field").replaceChildren(this.cells.drawing);
  }

  drawAttention() {
    const { trace, view, drawn } = this;
    const drawing = attentionChart(trace, drawn, view.whole ? null : this.selected.position);
    const shared = drawing !== null && trace.memory_window > 1;
    const said = drawing ? onlyOneBack(trace) : ["No memory was read in this trace."];
    this.part("whose").value = view.whole ? "whole" : "token";
    this.part("whose").hidden = this.part("distances").hidden = !shared;
    this.part("distances").replaceChildren(...(shared ? [distanceLegend(trace.memory_window, drawn)] : []));
    this.part("attention").replaceChildren(
      ...(shared ? [drawing] : said.map((text) => html("p", { class: "note" }, text))),
    );
  }

  follow(signal) {
    this.rule = ruleFor(this.trace, signal);
    this.drawHalting();
    this.stop(this.rule.threshold);
  }

  // Another threshold: another depth and answer, from what is known already.
  stop(threshold) {
    this.rule = { ...this.rule, threshold };
    const { depth, trace } = this;
    const loop = trace.loops[depth - 1];
    this.chart.show(threshold, depth);
    this.cells.mark(depth);
    for (const card of this.part("answers").querySelectorAll("[data-t]"))
      card.classList.toggle("chosen", Number(card.dataset.t) === depth);
    this.part("headline").replaceChildren(
      html("p", {}, "stops after loop ", html("b", { class: "depth" }, String(depth)), " and answers"),
      html(
        "p",
        { class: `said ${verdict(loop)}` },
        visible(loop.answer),
        html("small", {}, ` ${loop.answer_prob.toFixed(2)}`),
      ),
      html(
        "p",
        { class: "note" },
        loop.right === false ? `Right would be “${trace.reference}”. ` : null,
        settled(trace),
      ),
    );
    if (this.view.loop === null) this.select();
  }

  select() {
    const { position, loop } = this.selected;
    const found = this.trace.loops[loop - 1];
    const { label, value } = METRICS[this.view.metric];
    this.cells.select(position, loop);
    this.part("where").replaceChildren(
      html("b", {}, `“${visible(this.trace.tokens[position])}”`),
      ` token ${position + 1} of ${this.trace.tokens.length}, after loop ${loop}`,
      ` · ${label.toLowerCase()} ${number(value(found, position, this.layer))}`,
    );
    for (const name of ["decoded", "lens"]) {
      const { words, probs } = found[name];
      const text = (word) => visible(this.trace.vocabulary[word]);
      this.part(name).replaceChildren(...words[position].map((word, i) => bar(text(word), probs[position][i])));
    }
    const rows = found.layers.map((layer, j) => {
      const values = INSIDE.map((name) => html("td", {}, number(layer[name]?.[position])));
      return html("tr", {}, html("th", { scope: "row" }, `layer ${this.trace.block[j].index}`), ...values);
    });
    this.node.querySelector("tbody").replaceChildren(...rows);
    for (const card of this.part("answers").querySelectorAll("[data-t]"))
      card.classList.toggle("selected", Number(card.dataset.t) === this.view.loop);
  }
}

function settled(trace) {
  const from = settledAt(trace);
  if (trace.loops.length === 1) return null;
  if (from === 1) return "The answer is the same at every depth.";
  if (from === trace.loops.length) return "The answer still changes in the last loop.";
  return `From loop ${from} on the answer stays “${visible(trace.loops.at(-1).answer)}”.`;
}

// In the place of charts that would all be full.
function onlyOneBack(trace) {
  const slopes = trace.block.map(
    (layer) => `Slopes of layer ${layer.index}: ${layer.slopes.map((slope) => number(slope, 2)).join(", ")}.`,
  );
  return ["The memory holds one loop, so every head looks exactly one loop back, whatever its slope.", ...slopes];
}

const track = (share) => html("span", { class: "track" }, html("i", { style: { width: `${100 * share}%` } }));
const bar = (name, share) =>
  html(
    "div",
    { class: "bar" },
    html("span", { class: "word" }, name),
    track(share),
    html("span", { class: "value" }, share.toFixed(2)),
  );

// Also shown while the model runs, with the loops there are so far.
function answerCards(loops) {
  return loops.map((loop) => {
    const loss = loop.loss === null ? null : html("span", {}, `loss ${loop.loss.toFixed(2)}`);
    const card = html(
      "button",
      { type: "button", "data-t": loop.loop, class: verdict(loop) },
      html("span", { class: "loop" }, `loop ${loop.loop}`),
      html("span", { class: "said", title: loop.answer }, visible(loop.answer)),
      track(loop.answer_prob),
      html("span", { class: "small" }, html("span", {}, `p ${loop.answer_prob.toFixed(2)}`), loss),
    );
    return html("li", {}, card);
  });
}
