// OpenAI's client for Node: a task on stdin, what it got on stdout.
import OpenAI from "openai";
import { text } from "node:stream/consumers";

const task = JSON.parse(await text(process.stdin));
const client = new OpenAI({ baseURL: `${task.url}/v1`, apiKey: task.key, maxRetries: 0 });
const common = {
  model: task.model,
  messages: [{ role: "user", content: task.question }],
  temperature: 0,
  max_tokens: task.max_tokens,
};

const chat = await client.chat.completions.create(common);
const parts = [];
for await (const part of await client.chat.completions.create({ ...common, stream: true })) {
  parts.push(part.choices[0].delta.content ?? "");
}
const runner = client.chat.completions.stream({ ...common, tools: [task.tool], tool_choice: "required" });
const called = (await runner.finalChatCompletion()).choices[0].message.tool_calls[0];
const structured = await client.chat.completions.create({
  ...common,
  response_format: { type: "json_schema", json_schema: { name: "place", strict: true, schema: task.schema } },
});
process.stdout.write(
  JSON.stringify({
    chat: chat.choices[0].message.content,
    parts,
    tool: { name: called.function.name, arguments: JSON.parse(called.function.arguments) },
    structured: JSON.parse(structured.choices[0].message.content),
  }),
);
