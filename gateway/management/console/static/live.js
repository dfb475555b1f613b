// Parts of a page that are fetched again while the page is seen: <section data-live="/console/..." data-every="2">.
// With an empty address the part is taken out of the page's own address, which is fetched as a whole.

const MAX_PAUSE_SECONDS = 30;

class Live {
  constructor(section) {
    this.section = section;
    this.seconds = Number(section.dataset.every);
    this.failures = 0;
    this.running = false;
    this.timer = undefined;
  }

  start() {
    if (this.timer === undefined) this.schedule(this.seconds);
  }

  stop() {
    clearTimeout(this.timer);
    this.timer = undefined;
  }

  schedule(seconds) {
    this.timer = setTimeout(() => this.refresh(), seconds * 1000);
  }

  async refresh() {
    if (this.running) return;
    if (this.isSelected()) return this.schedule(this.seconds);
    this.running = true;
    try {
      // A redirect leads to the login form: the session has ended.
      const answer = await fetch(this.section.dataset.live || location.href, { redirect: "manual", signal: AbortSignal.timeout(10000) });
      if (answer.type === "opaqueredirect") return location.reload();
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      this.show(await answer.text());
      this.failures = 0;
    } catch {
      this.failures += 1;
    } finally {
      this.running = false;
    }
    this.section.classList.toggle("stale", this.failures > 0);
    if (this.timer !== undefined) this.schedule(Math.min(this.seconds * 2 ** this.failures, MAX_PAUSE_SECONDS));
  }

  // What is focused, open or scrolled stays so, as far as the new part has the same elements in the same order.
  show(html) {
    const parsed = new DOMParser().parseFromString(html, "text/html");
    const fresh = this.section.dataset.live ? parsed.body : parsed.getElementById(this.section.id);
    if (!fresh) throw new Error("the page has no such part");
    if (fresh.innerHTML.trim() === this.section.innerHTML.trim()) return;
    const before = this.places();
    const kept = before.map((each) => [each.scrollLeft, each.scrollTop, each.open]);
    const focused = before.indexOf(document.activeElement);
    this.section.replaceChildren(...fresh.childNodes);
    const after = this.places();
    if (after.length !== before.length) return;
    after.forEach((each, index) => {
      const [left, top, open] = kept[index];
      each.scrollLeft = left;
      each.scrollTop = top;
      if (open !== undefined) each.open = open;
    });
    after[focused]?.focus({ preventScroll: true });
  }

  // A text that is being copied stays.
  isSelected() {
    const selection = getSelection();
    return !selection.isCollapsed && selection.containsNode(this.section, true);
  }

  places() {
    return [...this.section.querySelectorAll("a, button, details, summary, input, select, [tabindex]")];
  }
}

const parts = [...document.querySelectorAll("[data-live]")].map((section) => new Live(section));

function follow() {
  for (const part of parts) {
    if (document.hidden) part.stop();
    else part.start();
  }
}

document.addEventListener("visibilitychange", follow);
follow();
