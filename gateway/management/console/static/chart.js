// The values of the place under the pointer, above each chart. Without scripts a place's `title` has them.

function show(event) {
  const place = event.target.closest?.("[data-chart] rect.place");
  for (const output of document.querySelectorAll("[data-values]")) {
    const mine = place && output.closest("[data-chart]").contains(place);
    const text = mine ? place.textContent.trim().replace("\n", " · ").replaceAll("\n", ", ") : "";
    if (output.textContent !== text) output.textContent = text;
  }
}

document.addEventListener("pointerover", show);
document.addEventListener("pointerdown", show);
