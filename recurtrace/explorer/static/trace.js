// What can be read off a trace: pure functions, no drawing.
"use strict";

const SIGNALS = {
  head: {
    label: "Halting head",
    says: "probability that another loop is worth it",
    stops: "below",
    value: (loop) => loop.continue_prob,
  },
  confidence: {
    label: "Confidence (CALM)",
    says: "probability of the likeliest next token",
    stops: "above",
    value: (loop) => loop.confidence,
  },
};

// The rule a trace begins with: the model's own head, or a confidence where there is none.
function firstRule(trace) {
  if (trace.head) {
    const { threshold, min_depth: floor, max_depth: budget } = trace.head;
    return { signal: "head", threshold, floor, budget };
  }
  return confidenceRule(trace);
}

// One loop is the base, so it is not asked.
function confidenceRule(trace) {
  return { signal: "confidence", threshold: 0.9, floor: 2, budget: trace.loops.length };
}

function ruleFor(trace, signal) {
  const own = firstRule(trace);
  return own.signal === signal ? own : confidenceRule(trace);
}

// Algorithm 1: the first loop from the floor on whose signal says stop, or else the budget.
function chosenDepth(trace, rule) {
  const { stops, value } = SIGNALS[rule.signal];
  const budget = Math.min(rule.budget, trace.loops.length);
  for (let t = rule.floor; t < budget; t++) {
    const now = value(trace.loops[t - 1]);
    if (stops === "below" ? now < rule.threshold : now >= rule.threshold) return t;
  }
  return budget;
}

// The first loop from which on the answer stays as it is.
function settledAt(trace) {
  const last = trace.loops.at(-1).answer;
  let t = trace.loops.length;
  while (t > 1 && trace.loops[t - 2].answer === last) t--;
  return t;
}

// Loops in a row with the same answer: "1 is · 2–6 Garden · 7–16 Kitchen".
function answersInShort(trace) {
  const rows = [];
  for (const { loop, answer } of trace.loops) {
    if (rows.at(-1)?.answer === answer) rows.at(-1).last = loop;
    else rows.push({ answer, first: loop, last: loop });
  }
  return rows
    .map(({ answer, first, last }) => `${first === last ? first : `${first}–${last}`} ${visible(answer)}`)
    .join(" · ");
}

const mean = (values) => {
  const there = values.filter((value) => value !== null && value !== undefined);
  return there.length ? there.reduce((a, b) => a + b, 0) / there.length : null;
};
const ofLayers = (name) => (loop, p, layer) =>
  layer === null ? mean(loop.layers.map((one) => one[name]?.[p])) : (loop.layers[layer]?.[name]?.[p] ?? null);
const ofState = (name) => (loop, p, layer) =>
  layer === null ? loop[name][p] : (loop.layers[layer]?.[name]?.[p] ?? null);

// What the grid can be coloured by. `value(loop, position, layer)`; layer null is the whole block, and `byLayer` says that
// a layer can be chosen. Null where there is none: the models of a comparison may loop different numbers of layers.
const METRICS = {
  change: {
    label: "State change",
    unit: "half turns from the loop before",
    byLayer: true,
    root: true,
    value: ofState("change"),
  },
  gate: { label: "Gate", unit: "token-wise gate, mean over features", byLayer: true, value: ofLayers("gate") },
  memory: {
    label: "Memory size",
    unit: "length of the memory term ÷ residual stream",
    byLayer: true,
    root: true,
    value: ofLayers("memory"),
  },
  entropy: {
    label: "Entropy",
    unit: "nats, of the next token at this depth",
    value: (loop, p) => loop.decoded.entropy[p],
  },
  injection: {
    label: "Injection",
    unit: "length of the injected input ÷ residual stream",
    value: (loop, p) => (loop.loop > 1 ? loop.injection[p] : null),
  },
  norm: { label: "State norm", unit: "length of the state", byLayer: true, value: ofState("norm") },
};

// Where a value lies between least and most. A root keeps the later loops apart, whose changes are small beside the
// first ones.
function shareOf(value, [least, most], metric) {
  const share = Math.max(0, value - least) / (most - least || 1);
  return METRICS[metric].root ? Math.sqrt(share) : share;
}

// [smallest, largest] for the colours; the top hundredth does not stretch the scale.
function domain(traces, metric, layer) {
  const values = [];
  for (const trace of traces)
    for (const loop of trace.loops)
      for (let p = 0; p < trace.tokens.length; p++) {
        const value = METRICS[metric].value(loop, p, layer);
        if (value !== null) values.push(value);
      }
  if (!values.length) return null;
  values.sort((a, b) => a - b);
  const top = values[Math.floor(0.99 * (values.length - 1))];
  return [metric === "norm" ? values[0] : 0, top || 1];
}

// Weights over 1, 2, … loops back of one head in one loop: at a position, or the mean over the prompt. Null if unread.
function attentionAt(loop, layer, head, position) {
  const rows = loop.layers[layer].attention?.[head];
  if (!rows) return null;
  if (position !== null) return rows[position];
  return rows[0].map((_, back) => mean(rows.map((row) => row[back])));
}

// How many loops a head looks back, on average over the loops in which its window is full.
function meanDistance(trace, layer, head, position) {
  const read = trace.loops.map((loop) => attentionAt(loop, layer, head, position)).filter(Boolean);
  const widest = Math.max(0, ...read.map((weights) => weights.length));
  const full = read.filter((weights) => weights.length === widest);
  return mean(full.map((weights) => weights.reduce((sum, weight, back) => sum + weight * (back + 1), 0)));
}

function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  return value !== 0 && Math.abs(value) < 0.001 ? value.toExponential(1) : String(Number(value.toPrecision(digits)));
}
const visible = (text) =>
  text
    .replace(/\n/g, "⏎")
    .replace(/^ (?=.)/, "")
    .replace(/^ $/, "␣") || "∅";
const counted = (count, name) => `${count} ${name}${count === 1 ? "" : "s"}`;
const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const modelName = (path) => path.replace(/\/+$/, "").split("/").slice(-2).join("/");
