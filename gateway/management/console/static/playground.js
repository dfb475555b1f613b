// Conversations with one or two models. What was said lives in this page alone.

import { asCurl, asPython } from "./playground_code.js";
import { eventsOf } from "./sse.js";

const form = document.getElementById("ask");
const talk = document.getElementById("talk");
const status = document.getElementById("status");
const question = document.getElementById("question");
const stop = document.getElementById("stop");
const send = document.getElementById("send");
const prices = JSON.parse(form.dataset.prices);
const defaults = JSON.parse(form.dataset.defaults);
const csrf = document.querySelector('meta[name="csrf-token"]').content;

// What each model was told and said, by its name.
let conversations = new Map();
let underWay = null;

const field = (id) => document.getElementById(id);

function turn(speaker, text, kind) {
  const part = field("turn").content.cloneNode(true).firstElementChild;
  part.classList.toggle("asked", kind === "asked");
  part.querySelector(".speaker").textContent = speaker;
  part.querySelector(".answer").textContent = text;
  talk.append(part);
  part.scrollIntoView({ block: "nearest" });
  return part;
}

function headers() {
  const told = { "content-type": "application/json", "x-csrf-token": csrf };
  if (form.dataset.grant) told["x-key-grant"] = form.dataset.grant;
  return told;
}

// The models that answer: the chosen one, and the other if one is chosen to compare it with.
function chosenModels() {
  const other = field("other").value;
  const model = field("model").value;
  return other && other !== model ? [model, other] : [model];
}

// Throws a SyntaxError, with the field's name, where a field is not JSON.
function jsonOf(id, label) {
  const text = field(id).value.trim();
  if (!text) return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new SyntaxError(`${label}: ${error.message}`);
  }
}

function body(model, said) {
  const system = field("system").value.trim();
  const asked = { model, messages: [...(system ? [{ role: "system", content: system }] : []), ...said] };
  asked.service_tier = field("tier").value;
  for (const id of ["temperature", "top-p", "max-tokens", "seed"]) {
    if (field(id).value) asked[id.replace("-", "_")] = Number(field(id).value);
  }
  const schema = jsonOf("json-schema", "JSON schema");
  if (schema) asked.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  const tools = jsonOf("tools", "Tools");
  if (tools) asked.tools = tools;
  return asked;
}

async function ask() {
  const text = question.value.trim();
  if (underWay || !text || !form.reportValidity()) return;
  const models = chosenModels();
  let bodies;
  try {
    bodies = models.map((model) => body(model, [...(conversations.get(model) ?? []), { role: "user", content: text }]));
  } catch (error) {
    status.textContent = error.message;
    return;
  }
  talk.classList.toggle("two", models.length === 2);
  turn("You", text, "asked");
  question.value = "";
  underWay = new AbortController();
  working(true);
  await Promise.all(models.map((model, at) => converse(model, text, bodies[at], underWay.signal)));
  underWay = null;
  working(false);
  question.focus();
}

async function converse(model, text, asked, signal) {
  const answer = new Answer(turn(model, ""));
  try {
    await answer.follow(asked, signal);
  } catch (error) {
    if (error.name === "AbortError") answer.stopped();
    else answer.fail(error.message || "The connection broke.");
  }
  // What was not answered is not part of the conversation.
  if (!answer.text) return;
  const said = conversations.get(model) ?? [];
  said.push({ role: "user", content: text }, { role: "assistant", content: answer.text });
  conversations.set(model, said);
}

function working(yes) {
  send.disabled = yes;
  stop.disabled = !yes;
  status.textContent = yes ? "The model answers." : "The answer has ended.";
}

class Answer {
  constructor(part) {
    this.part = part;
    this.text = "";
    this.thought = "";
    this.facts = new Map();
    this.begun = performance.now();
    this.ended = false;
  }

  async follow(asked, signal) {
    const sent = JSON.stringify({ ...asked, stream: true, stream_options: { include_usage: true } });
    const response = await fetch(form.dataset.target, { method: "POST", headers: headers(), body: sent, signal });
    this.headed(response.headers);
    if (!response.ok) return this.fail((await errorOf(response)) ?? `Status ${response.status}.`);
    for await (const data of eventsOf(response)) {
      if (data === "[DONE]") this.ended = true;
      else if (!this.take(JSON.parse(data))) return;
    }
    if (!this.ended) this.fail("The answer broke off.");
    this.show();
  }

  headed(told) {
    this.note("Routed", told.get("x-turnpike-served-model"));
    this.note("Because", told.get("x-turnpike-route-reason"));
    this.note("Id of the exchange", told.get("x-request-id"));
  }

  // One event; whether more are to be read.
  take(event) {
    if (event.error) {
      this.fail(event.error.message);
      return false;
    }
    if (event.id && !this.id) {
      this.id = event.id;
      this.show();
    }
    if (event.service_tier) this.note("Class", event.service_tier);
    for (const choice of event.choices ?? []) {
      this.say(choice.delta?.content, choice.delta?.reasoning_content ?? choice.delta?.reasoning);
      for (const call of choice.delta?.tool_calls ?? []) this.call(call.function ?? {});
      if (choice.finish_reason) this.note("Ended with", choice.finish_reason);
    }
    if (event.usage) this.used(event.usage, event.model, event.service_tier);
    return true;
  }

  say(text, thought) {
    if (!text && !thought) return;
    if (this.first === undefined) {
      this.first = performance.now();
      this.note("First token", `${Math.round(this.first - this.begun)} ms`);
    }
    if (text) {
      this.text += text;
      this.part.querySelector(".answer").append(text);
    }
    if (thought) {
      const details = this.part.querySelector(".thought");
      details.hidden = false;
      details.querySelector(".said").append(thought);
    }
  }

  call({ name, arguments: given }) {
    const shown = this.part.querySelector(".call");
    shown.hidden = false;
    if (name) shown.firstElementChild.append(`${shown.textContent ? "\n" : ""}${name} `);
    if (given) shown.firstElementChild.append(given);
  }

  used(usage, model, tier) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    this.note("Prompt", `${usage.prompt_tokens.toLocaleString("en")} tokens, ${cached.toLocaleString("en")} cached`);
    this.note("Answer", `${usage.completion_tokens.toLocaleString("en")} tokens`);
    const seconds = (performance.now() - (this.first ?? this.begun)) / 1000;
    if (usage.completion_tokens > 1) this.note("Speed", `${((usage.completion_tokens - 1) / seconds).toFixed(1)} tokens a second`);
    const price = prices[model]?.[tier];
    if (price) this.note("Cost", dollars(costOf(price, usage.prompt_tokens, cached, usage.completion_tokens)));
  }

  note(name, value) {
    if (value) this.facts.set(name, value);
  }

  show() {
    const list = this.part.querySelector(".facts");
    list.replaceChildren();
    list.hidden = false;
    for (const [name, value] of this.facts) list.append(cell("dt", name), cell("dd", value));
    if (!this.id) return;
    const link = cell("a", this.id);
    link.href = `/console/requests/${encodeURIComponent(this.id)}`;
    const about = cell("dd", "");
    about.append(link);
    list.append(cell("dt", "Request"), about);
  }

  stopped() {
    this.note("Ended with", "stopped by you");
    this.show();
  }

  fail(message) {
    const notice = this.part.querySelector(".notice");
    notice.hidden = false;
    notice.textContent = message;
    this.show();
  }
}

function cell(kind, text) {
  const part = document.createElement(kind);
  part.textContent = text;
  return part;
}

async function errorOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return null;
  }
}

// Exactly, in nanodollars: the price of each kind of token times their number.
function costOf([prompt, cachedPrompt, completion], promptTokens, cachedTokens, completionTokens) {
  return (
    BigInt(prompt) * BigInt(promptTokens - cachedTokens) +
    BigInt(cachedPrompt) * BigInt(cachedTokens) +
    BigInt(completion) * BigInt(completionTokens)
  );
}

function dollars(nanodollars) {
  const digits = nanodollars.toString().padStart(10, "0");
  const decimals = digits.slice(-9).replace(/0+$/, "").padEnd(2, "0");
  return `$${digits.slice(0, -9)}.${decimals}`;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    ask();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") underWay?.abort();
});
stop.addEventListener("click", () => underWay?.abort());
field("anew").addEventListener("click", () => {
  underWay?.abort();
  conversations = new Map();
  talk.replaceChildren();
  question.focus();
});

// The request that "Send" would make now, as code.
async function copyAs(button, code) {
  const label = button.textContent;
  try {
    const [model] = chosenModels();
    const text = question.value.trim() || "Hello!";
    await navigator.clipboard.writeText(
      code(location.origin, body(model, [...(conversations.get(model) ?? []), { role: "user", content: text }])),
    );
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = label), 1500);
  } catch (error) {
    status.textContent = error.message;
  }
}
field("as-curl").addEventListener("click", (event) => copyAs(event.currentTarget, asCurl));
field("as-python").addEventListener("click", (event) => copyAs(event.currentTarget, asPython));

// The model's own sampling parameters stand in the empty fields.
function showDefaults() {
  const own = defaults[field("model").value] ?? {};
  for (const [id, name] of [["temperature", "temperature"], ["top-p", "top_p"]]) {
    field(id).placeholder = own[name] ?? "the model's";
  }
}
field("model").addEventListener("change", showDefaults);
showDefaults();

field("anew").hidden = false;
for (const part of form.querySelectorAll("[data-scripted]")) part.hidden = false;
