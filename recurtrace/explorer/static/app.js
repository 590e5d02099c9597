// The page: asks the server for traces, and keeps what is shown.
"use strict";

const $ = (id) => document.getElementById(id);
const view = { metric: "change", layer: null, position: null, loop: null, whole: true, range: null };
let panels = [];
let running = null;
let about = null;

// --- what is shown -------------------------------------------------------------------------------------------------

// A trace that was there before keeps its panel, with its threshold and what is selected.
function show(traces) {
  const before = new Map(panels.map((panel) => [panel.trace, panel]));
  if (!traces.some((trace) => before.has(trace))) Object.assign(view, { position: null, loop: null });
  if (!traces.some((trace) => view.layer < trace.block.length)) view.layer = null;
  panels = traces.map((trace) => before.get(trace) ?? new Panel(trace, view, { look, close, shown: () => panels }));
  for (const panel of panels) panel.part("close").hidden = panels.length < 2;
  $("panels").replaceChildren(...panels.map((panel) => panel.node));
  $("panels").classList.toggle("two", panels.length > 1);
  $("hello").hidden = panels.length > 0 || GIVEN.alone;
  $("compare").disabled = panels.length === 0;
  redraw();
}

const close = (panel) => show(panels.filter((other) => other !== panel).map((other) => other.trace));

function redraw() {
  const { byLayer } = METRICS[view.metric];
  view.range = panels.length
    ? domain(
        panels.map((panel) => panel.trace),
        view.metric,
        byLayer ? view.layer : null,
      )
    : null;
  for (const panel of panels) panel.draw();
}

// Look at something else in all panels: colours, a layer, a cell.
function look(change) {
  Object.assign(view, change);
  if ("metric" in change || "layer" in change) return redraw();
  for (const panel of panels) {
    panel.select();
    if ("whole" in change || ("position" in change && !view.whole)) panel.drawAttention();
  }
}

function say(message) {
  $("message").textContent = message;
  $("message").hidden = !message;
  if (message) $("message").scrollIntoView({ block: "nearest" });
}

// --- asking --------------------------------------------------------------------------------------------------------

async function ask(beside) {
  say("");
  if (!$("ask").reportValidity()) return;
  running?.abort();
  const mine = (running = new AbortController());
  const question = {
    model: $("model").value,
    prompt: $("prompt").value,
    reference: $("reference").value.trim() || null,
    max_loops: Number($("loops").value),
    memory_off_from: Number($("off").value) || null,
  };
  busy(true, "starting…");
  const loops = [];
  try {
    const trace = await streamed(question, mine.signal, (event) => {
      if (event.event === "waiting") busy(true, `waiting, ${event.before} ahead…`);
      if (event.event !== "loop") return;
      loops.push(event);
      busy(
        true,
        `loop ${event.loop} of ${question.max_loops}: ${visible(event.answer)}`,
        event.loop / question.max_loops,
      );
      $("live").firstElementChild.replaceChildren(...answerCards(loops));
      $("live").hidden = false;
    });
    show(beside ? [panels[0].trace, trace] : [trace]);
    $("live").hidden = true; // what is below it moves up
    if ($("panels").getBoundingClientRect().top > 0.7 * innerHeight) $("panels").scrollIntoView();
  } catch (error) {
    say(error.name === "AbortError" ? "" : error.message);
  } finally {
    if (running === mine) {
      running = null;
      busy(false, mine.signal.aborted ? "cancelled" : "");
      $("live").hidden = true;
    }
  }
}

// One JSON object a line, until the trace comes.
async function streamed(question, signal, told) {
  let response;
  try {
    response = await fetch("api/trace", {
      method: "POST",
      signal,
      headers: { "content-type": "application/json" },
      body: JSON.stringify(question),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer; is `recurtrace explore` still running?");
  }
  if (!response.ok) throw new Error((await response.json()).message);
  for await (const event of objects(response.body, signal)) {
    if (event.event === "trace") return event.trace;
    if (event.event === "error") throw new Error(event.message);
    told(event);
  }
  throw new Error("The run ended without a trace; the terminal of `recurtrace explore` says why.");
}

// The JSON objects of a stream; a stream that breaks ends, unless it was left.
async function* objects(body, signal) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  const broken = (error) => (signal.aborted ? Promise.reject(error) : { done: true });
  for (let rest = "", part; !(part = await reader.read().catch(broken)).done; ) {
    const lines = (rest + part.value).split("\n");
    rest = lines.pop();
    for (const line of lines) yield JSON.parse(line);
  }
}

function busy(is, status, share = 0) {
  $("cancel").hidden = $("progress").hidden = !is;
  $("trace").disabled = is;
  $("compare").disabled = is || panels.length === 0;
  $("progress").value = share;
  $("status").textContent = status;
  document.body.classList.toggle("busy", is);
}

function offer(samples) {
  for (const sample of samples) {
    const fill = () => {
      $("prompt").value = sample.prompt;
      $("reference").value = sample.reference;
      ask(false);
    };
    let group = $("samples").querySelector(`[data-kind="${CSS.escape(sample.kind)}"]`);
    if (!group) {
      group = html("p", { "data-kind": sample.kind }, html("span", {}, sample.kind));
      $("samples").append(group);
    }
    group.append(html("button", { type: "button", class: "chip", title: sample.prompt, onclick: fill }, sample.level));
  }
}

function memoryChoices() {
  const none = about.without_memory.includes($("model").value);
  const chosen = none ? "" : $("off").value;
  const loops = Math.max(1, Math.min(64, Number($("loops").value) || 1));
  const offs = Array.from({ length: loops - 1 }, (_, i) => html("option", { value: i + 2 }, `off from loop ${i + 2}`));
  $("off").replaceChildren(html("option", { value: "" }, none ? "none" : "on"), ...(none ? [] : offs));
  $("off").disabled = none;
  $("off").value = Number(chosen) <= loops ? chosen : "";
}

async function begin() {
  about = await (await fetch("api/about")).json();
  $("model").replaceChildren(...about.models.map((name) => html("option", { value: name }, modelName(name))));
  $("loops").max = about.max_loops;
  $("loops").value = Math.min(16, about.max_loops);
  memoryChoices();
  offer(about.samples);
  $("stories").hidden = !about.stories;
  $("ask").hidden = false;
  if (about.samples.length) offer(await (await fetch("api/turning")).json());
}

// --- light and dark ------------------------------------------------------------------------------------------------

const dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
$("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  redraw();
});
dark.addEventListener("change", redraw);

// --- start ---------------------------------------------------------------------------------------------------------

const GIVEN = JSON.parse($("given").textContent);
$("given").textContent = JSON.stringify({ ...GIVEN, traces: ["traces"] });
const EMPTY = document.documentElement.outerHTML; // to save the page with the traces that are shown then
$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  ask(false);
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) ask(false);
});
$("compare").addEventListener("click", () => ask(true));
$("cancel").addEventListener("click", () => running?.abort());
$("loops").addEventListener("change", memoryChoices);
$("model").addEventListener("change", memoryChoices);
if (location.search.includes("token=")) history.replaceState(null, "", location.pathname);
show(GIVEN.traces);
if (!GIVEN.alone) begin();
