// A request as code for a shell and for Python. The key is a variable: this page has none.

// In single quotes, as a POSIX shell reads them.
function quoted(text) {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

export function asCurl(origin, body) {
  return [
    `curl ${origin}/v1/chat/completions \\`,
    `  -H "Authorization: Bearer $TURNPIKE_KEY" \\`,
    `  -H "Content-Type: application/json" \\`,
    `  -d ${quoted(JSON.stringify(body, null, 2))}`,
    "",
  ].join("\n");
}

export function asPython(origin, body) {
  const given = Object.entries(body).map(([name, value]) => `    ${name}=${literal(value, 1)},`);
  return [
    "import os",
    "",
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(`${origin}/v1`)}, api_key=os.environ["TURNPIKE_KEY"])`,
    "answer = client.chat.completions.create(",
    ...given,
    ")",
    "print(answer.choices[0].message)",
    "",
  ].join("\n");
}

// A JSON value as a literal of Python.
function literal(value, depth) {
  const indent = "    ".repeat(depth);
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const isList = Array.isArray(value);
  const parts = Object.entries(value).map(
    ([name, each]) => `${indent}    ${isList ? "" : `${JSON.stringify(name)}: `}${literal(each, depth + 1)},\n`,
  );
  const [open, close] = isList ? "[]" : "{}";
  return parts.length ? `${open}\n${parts.join("")}${indent}${close}` : open + close;
}
