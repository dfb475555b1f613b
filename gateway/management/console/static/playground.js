// A conversation with a model: what was said lives in this page alone, and so does the key that an administrator types.

import { eventsOf } from "./sse.js";

const form = document.getElementById("ask");
const talk = document.getElementById("talk");
const status = document.getElementById("status");
const question = document.getElementById("question");
const stop = document.getElementById("stop");
const send = document.getElementById("send");
const prices = JSON.parse(form.dataset.prices);
const csrf = document.querySelector('meta[name="csrf-token"]').content;

let said = [];
let underWay = null;

const field = (id) => document.getElementById(id);

function turn(speaker, text) {
  const part = field("turn").content.cloneNode(true).firstElementChild;
  part.querySelector(".speaker").textContent = speaker;
  part.querySelector(".answer").textContent = text;
  talk.append(part);
  part.scrollIntoView({ block: "nearest" });
  return part;
}

function headers() {
  const told = { "content-type": "application/json" };
  const key = field("key");
  if (key) told.authorization = `Bearer ${key.value.trim()}`;
  else told["x-csrf-token"] = csrf;
  return told;
}

function body() {
  const system = field("system").value.trim();
  const asked = {
    model: field("model").value,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...said],
    stream: true,
    stream_options: { include_usage: true },
    service_tier: field("tier").value,
  };
  if (field("temperature").value) asked.temperature = Number(field("temperature").value);
  if (field("max-tokens").value) asked.max_tokens = Number(field("max-tokens").value);
  return JSON.stringify(asked);
}

async function ask() {
  const text = question.value.trim();
  if (underWay || !text || !form.reportValidity()) return;
  const conversation = said;
  conversation.push({ role: "user", content: text });
  turn("You", text);
  question.value = "";
  const answer = new Answer(turn(field("model").value, ""));
  underWay = new AbortController();
  working(true);
  try {
    await answer.follow(underWay.signal);
  } catch (error) {
    if (error.name === "AbortError") answer.stopped();
    else answer.fail(error.message || "The connection broke.");
  }
  underWay = null;
  working(false);
  // What was not answered is not part of the conversation.
  if (answer.text) conversation.push({ role: "assistant", content: answer.text });
  else conversation.pop();
  question.focus();
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

  async follow(signal) {
    const options = { method: "POST", headers: headers(), body: body(), signal };
    // With a key of its own, the page's session has no say.
    if (field("key")) options.credentials = "omit";
    const response = await fetch(form.dataset.target, options);
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
  said = [];
  talk.replaceChildren();
  question.focus();
});
