// Uploads the two files of an adapter in parts. A part that is lost is sent again from where the gateway stands, and an
// upload that was left is resumed when the same files are chosen for the same name.

const FILES = ["adapter_config.json", "adapter_model.safetensors"];
const ATTEMPTS = 5;

const form = document.getElementById("adapter-upload");
const progress = document.getElementById("upload-progress");
const status = document.getElementById("upload-status");
const csrf = document.querySelector('meta[name="csrf-token"]').content;

class Refused extends Error {
  constructor(message, code) {
    super(message);
    this.code = code;
  }
}

async function call(method, path, body, type) {
  const headers = { "x-csrf-token": csrf };
  if (type) headers["content-type"] = type;
  const response = await fetch(form.dataset.target + path, { method, headers, body });
  if (response.ok) return response.json();
  const answer = await response.json().catch(() => null);
  throw new Refused(answer?.error?.message ?? `Status ${response.status}.`, response.status);
}

async function sha256(file) {
  const digest = await crypto.subtle.digest("SHA-256", await file.arrayBuffer());
  return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// Those of the two names, in their order. Throws an Error that says what is missing.
function chosen() {
  const files = [...document.getElementById("upload-files").files];
  return FILES.map((name) => {
    const file = files.find((each) => each.name === name);
    if (!file) throw new Error(`${name} is missing.`);
    return file;
  });
}

// The upload of these files that was begun before, or a new one.
async function begin(name, model, files, digests) {
  const key = `${form.dataset.target} ${name} ${model} ${digests.join(" ")}`;
  const earlier = sessionStorage.getItem(key);
  if (earlier) {
    try {
      return { key, upload: await call("GET", `/${earlier}`) };
    } catch (error) {
      if (error.code !== 404) throw error;
    }
  }
  const stated = files.map((file, at) => ({ name: file.name, bytes: file.size, sha256: digests[at] }));
  const body = { name, files: stated, ...(model ? { model } : {}) };
  const upload = await call("POST", "", JSON.stringify(body), "application/json");
  sessionStorage.setItem(key, upload.id);
  return { key, upload };
}

async function received(id, name) {
  const upload = await call("GET", `/${id}`);
  return upload.files.find((each) => each.name === name).received_bytes;
}

function isPassing(error) {
  return !(error instanceof Refused) || error.code === 409 || error.code === 429 || error.code >= 500;
}

// Sends the rest of a file. `sent` receives the bytes that the gateway has.
async function send(id, file, from, sent) {
  const size = Number(form.dataset.partBytes);
  let [offset, failures] = [from, 0];
  while (offset < file.size) {
    try {
      const part = file.slice(offset, offset + size);
      const query = `/${id}/files/${file.name}?offset=${offset}`;
      offset = (await call("PUT", query, part, "application/octet-stream")).received_bytes;
      failures = 0;
    } catch (error) {
      failures += 1;
      if (failures === ATTEMPTS || !isPassing(error)) throw error;
      await new Promise((resolve) => setTimeout(resolve, 500 * 2 ** failures));
      offset = await received(id, file.name).catch(() => offset);
    }
    sent(offset);
  }
}

async function upload() {
  if (!crypto.subtle) throw new Error("Browsers compute digests on pages of HTTPS or localhost alone: use the command.");
  const files = chosen();
  status.textContent = "Computing digests.";
  const digests = await Promise.all(files.map(sha256));
  const name = document.getElementById("upload-name").value.trim();
  const model = document.getElementById("upload-model").value.trim();
  const { key, upload: begun } = await begin(name, model, files, digests);
  const total = files.reduce((sum, file) => sum + file.size, 0);
  const at = new Map(begun.files.map((file) => [file.name, file.received_bytes]));
  status.textContent = "Uploading.";
  progress.hidden = false;
  for (const file of files) {
    await send(begun.id, file, at.get(file.name), (bytes) => {
      at.set(file.name, bytes);
      progress.value = [...at.values()].reduce((sum, each) => sum + each, 0) / total;
    });
  }
  status.textContent = "Checking the adapter against its base model.";
  const adapter = await call("POST", `/${begun.id}/complete`);
  sessionStorage.removeItem(key);
  location.assign(form.dataset.shown + encodeURIComponent(adapter.name));
}

if (form) form.hidden = false;
form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = form.querySelector("button");
  button.disabled = true;
  status.classList.remove("error");
  try {
    await upload();
  } catch (error) {
    status.textContent = error.message;
    status.classList.add("error");
    progress.hidden = true;
    button.disabled = false;
  }
});
