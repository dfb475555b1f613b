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
