// What every page can do better with a script: all of it works without.

// A select that is its form's only question sends it at once.
for (const select of document.querySelectorAll("select[data-submit]")) {
  select.form.classList.add("scripted");
  select.addEventListener("change", () => select.form.requestSubmit());
}

// <button data-print> prints the page.
for (const button of document.querySelectorAll("[data-print]")) {
  button.hidden = false;
  button.addEventListener("click", () => window.print());
}

// <button data-copy="id of an element"> puts that element's text on the clipboard.
for (const button of document.querySelectorAll("[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const source = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(source.textContent.trim());
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(source);
      button.textContent = "Selected: press Ctrl+C";
    }
  });
}

// On a narrow screen the list of pages scrolls sideways: it begins with the current page in its middle.
const pages = document.querySelector(".sections");
const currentPage = pages?.querySelector("[aria-current]");
if (currentPage) {
  const place = currentPage.getBoundingClientRect();
  pages.scrollLeft += place.left + place.width / 2 - pages.clientWidth / 2;
}

document.documentElement.classList.add("has-scripts");

// <button data-copy-text="..."> puts that text on the clipboard, wherever on the page it is, now or after a refresh.
document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("[data-copy-text]");
  if (!button) return;
  const sign = button.textContent;
  try {
    await navigator.clipboard.writeText(button.dataset.copyText);
    button.textContent = "✓";
  } catch {
    button.textContent = "✗";
  }
  button.classList.add("copied");
  setTimeout(() => {
    button.textContent = sign;
    button.classList.remove("copied");
  }, 1500);
});

// <time data-ago>: as `formatting.ago`.
function ago(moment) {
  const seconds = Math.floor((Date.now() - Date.parse(moment)) / 1000);
  if (!(seconds >= 1)) return "now";
  for (const [length, unit] of [[1, "s"], [60, "min"], [3600, "h"]]) {
    if (seconds < 120 * length) return `${Math.floor(seconds / length)} ${unit} ago`;
  }
  return `${Math.floor(seconds / 86400)} days ago`;
}

setInterval(() => {
  if (document.hidden) return;
  for (const each of document.querySelectorAll("time[data-ago]")) each.textContent = ago(each.dateTime);
}, 10000);
