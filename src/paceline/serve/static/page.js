"use strict";

const at = (id) => document.getElementById(id);
const SOURCES = 6; // styles in page.css
const sources = []; // names, in the order in which they were first seen
const messages = [];
let model = "";
let running = null; // the AbortController of the request that is being answered

function rounded(number) {
  return Number.isFinite(number) ? number.toFixed(number < 10 ? 2 : 0) : "–";
}

function headers() {
  const key = at("key").value.trim();
  return {
    "Content-Type": "application/json",
    ...(key && { Authorization: `Bearer ${key}` }),
  };
}

async function showLoad() {
  try {
    const state = await (await fetch("state", { cache: "no-store" })).json();
    model = state.model;
    const waiting = state.waiting ? `, ${state.waiting} waiting` : "";
    at("server").textContent =
      `${state.model} · ${state.method} · ${state.running} of ${state.slots} places taken${waiting}`;
  } catch {
    at("server").textContent = "the server does not answer";
  }
}

function sourceNumber(name) {
  if (!sources.includes(name)) {
    sources.push(name);
    const entry = document.createElement("li");
    const sample = document.createElement("span");
    sample.className = `guess source-${(sources.length - 1) % SOURCES}`;
    sample.textContent = name;
    entry.append(sample);
    at("legend").append(entry);
  }
  return sources.indexOf(name) % SOURCES;
}

function addArticle(title) {
  at("empty")?.remove();
  const article = document.createElement("article");
  const heading = document.createElement("h2");
  heading.textContent = title;
  const text = document.createElement("p");
  article.append(heading, text);
  at("log").append(article);
  follow(true);
  return article;
}

function follow(always = false) {
  const log = at("log");
  if (always || log.scrollHeight - log.scrollTop - log.clientHeight < 80) {
    log.scrollTop = log.scrollHeight;
  }
}

function addPiece(into, piece) {
  const last = into.lastChild;
  const kind = piece.drafted
    ? `guess source-${sourceNumber(piece.sources[0] ?? "guessed")}`
    : "";
  if (last?.className === kind && last.title === piece.sources.join(", ")) {
    last.textContent += piece.text;
    return;
  }
  const span = document.createElement("span");
  span.className = kind;
  span.title = piece.sources.join(", ");
  span.textContent = piece.text;
  into.append(span);
}

function addNote(article, text, kind = "figures") {
  const note = document.createElement("p");
  note.className = kind;
  note.textContent = text;
  article.append(note);
  follow();
}

function request(method) {
  const reference = at("reference").value;
  return {
    model,
    messages,
    stream: true,
    stream_options: { include_usage: true },
    temperature: Number(at("temperature").value) || 0,
    seed: Math.trunc(Number(at("seed").value)) || 0,
    max_tokens: Math.max(1, Math.trunc(Number(at("tokens").value)) || 400),
    ...(reference && { prediction: { type: "content", content: reference } }),
    paceline: { metrics: true, sources: true, ...(method && { method }) },
  };
}

/** The objects of a stream of server-sent events. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the answer broke off");
    rest += value;
    const blocks = rest.split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      if (!block.startsWith("data: ")) continue;
      if (block === "data: [DONE]") return;
      yield JSON.parse(block.slice(6));
    }
  }
}

/** Write one answer into an article; its text and figures. */
async function write(article, method, signal) {
  const text = article.querySelector("p");
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: headers(),
    body: JSON.stringify(request(method)),
    signal,
  });
  if (!response.ok) {
    const body = await response.json().catch(() => ({}));
    throw new Error(body.error?.message ?? `the server answered ${response.status}`);
  }
  let begun = 0;
  let pieces = 0;
  let metrics = null;
  let said = "";
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    metrics = event.metrics ?? metrics;
    for (const piece of event.choices[0]?.paceline?.pieces ?? []) {
      addPiece(text, piece);
      said += piece.text;
      pieces += 1;
    }
    begun ||= pieces ? performance.now() : 0;
    const seconds = (performance.now() - begun) / 1000;
    if (pieces > 1 && seconds > 0.2) {
      at(method ? "plain" : "speed").textContent = rounded((pieces - 1) / seconds);
    }
    follow();
  }
  return { said, metrics };
}

function showFigures(fast, plain) {
  const draft = fast.speculative_decoding;
  at("speed").textContent = rounded(fast.tokens_per_second);
  at("acceptance").textContent = rounded(draft.mean_acceptance_length);
  at("plain").textContent = plain ? rounded(plain.tokens_per_second) : "–";
  at("gain").textContent = plain
    ? `${rounded(fast.tokens_per_second / plain.tokens_per_second)}×`
    : "–";
}

function sentence(metrics) {
  const draft = metrics.speculative_decoding;
  return (
    `${rounded(metrics.tokens_per_second)} tokens/s, first after ` +
    `${rounded(metrics.time_to_first_token_ms)} ms, ${rounded(draft.mean_acceptance_length)} ` +
    `tokens per pass, ${draft.num_accepted_draft_tokens} of ${draft.num_draft_tokens} guesses right`
  );
}

function busy(yes) {
  at("log").setAttribute("aria-busy", String(yes));
  at("send").disabled = yes;
  at("stop").disabled = !yes;
}

async function ask(text) {
  messages.push({ role: "user", content: text });
  addArticle("You").querySelector("p").textContent = text;
  const article = addArticle(model);
  running = new AbortController();
  busy(true);
  at("status").textContent = "answering";
  try {
    const fast = await write(article, null, running.signal);
    addNote(article, sentence(fast.metrics));
    showFigures(fast.metrics, null);
    if (at("compare").checked) {
      const again = addArticle("the same by plain decoding");
      const plain = await write(again, "off", running.signal);
      const same = plain.said === fast.said ? "the same text" : "ANOTHER TEXT: this is a bug";
      addNote(again, `${same}; ${sentence(plain.metrics)}`);
      showFigures(fast.metrics, plain.metrics);
    }
    messages.push({ role: "assistant", content: fast.said });
    at("status").textContent = "done";
  } catch (error) {
    if (!article.isConnected) return; // another chat has begun
    const stopped = error.name === "AbortError";
    addNote(article, stopped ? "stopped" : error.message, stopped ? "figures" : "error");
    at("status").textContent = stopped ? "stopped" : "failed";
    // What was said stays in the conversation; a question without any answer does not.
    const said = article.querySelector("p").textContent;
    if (said) messages.push({ role: "assistant", content: said });
    else messages.pop();
  } finally {
    running = null;
    busy(false);
    showLoad();
  }
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = at("message").value.trim();
  if (!text || running) return;
  at("message").value = "";
  ask(text);
});

at("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    at("ask").requestSubmit();
  }
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});

at("stop").addEventListener("click", () => {
  running?.abort();
  at("message").focus();
});

at("clear").addEventListener("click", () => {
  running?.abort();
  messages.length = 0;
  at("log").replaceChildren();
  at("status").textContent = "a new chat";
  at("message").focus();
});

showLoad();
setInterval(() => document.hidden || showLoad(), 2000);
at("message").focus();
