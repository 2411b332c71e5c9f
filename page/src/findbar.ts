// The bar in which one types what to find in a run.

import { Problem, type LogRecord } from "./api";
import { count, h, plural, toast } from "./dom";
import { patternOf, queryOf, type Finder, type Mode } from "./find";

interface Owner {
  /** The record behind which a search begins, or before which: `last` was found last. */
  current: (forward: boolean, last: string | null) => Promise<string | null>;
  go: (record: LogRecord) => Promise<void>;
  mark: (pattern: RegExp | null, q: string | undefined) => void;
  only: (q: string) => void;
  save: (q: string) => void;
  closed: () => void;
}

export class FindBar {
  readonly element: HTMLElement;
  private readonly input: HTMLInputElement;
  private readonly mode: HTMLSelectElement;
  private readonly said = h("output", { class: "found", "aria-live": "polite" });
  private asking = new AbortController();
  private total: number | null = null;
  private at: string | null = null;
  private q = "";
  private steps: Promise<void> = Promise.resolve();
  private stopped = false;

  constructor(private readonly finder: Finder, private readonly owner: Owner) {
    this.input = h("input", { type: "search", "aria-label": "Find in this run", placeholder: "Find in the whole run", autocomplete: "off", spellcheck: "false" });
    this.mode = h(
      "select",
      { "aria-label": "How to search" },
      h("option", { value: "text" }, "text"),
      h("option", { value: "case" }, "text, exact case"),
      h("option", { value: "regex" }, "regular expression"),
      h("option", { value: "query" }, "query"),
    );
    const button = (label: string, title: string, act: () => void, kind?: string): HTMLElement =>
      h("button", { type: "button", class: kind, title, "aria-label": label.length > 1 ? undefined : title, onclick: act }, label);
    this.element = h(
      "form",
      { class: "find", role: "search", hidden: true, onsubmit: (event: Event) => event.preventDefault() },
      this.input,
      this.mode,
      button("↑", "Previous match (Shift-Enter, N)", () => this.step(false)),
      button("↓", "Next match (Enter, n)", () => this.step(true)),
      this.said,
      button("Only matches", "List only matches", () => this.only()),
      button("Download matches", "Save the matches as a file", () => this.save(), "wide"),
      button("✕", "Close (Esc)", () => this.close()),
    );
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") {
        event.preventDefault();
        this.step(!event.shiftKey);
      } else if (event.key === "Escape") this.close();
    });
    this.mode.addEventListener("change", () => this.step(true));
  }

  open(): void {
    this.element.hidden = false;
    this.input.focus();
    this.input.select();
  }

  /** Begins with a query out of the address, without leaving the place. */
  start(q: string): void {
    this.asking = new AbortController();
    this.element.hidden = false;
    this.mode.value = "query";
    this.input.value = q;
    this.owner.mark(patternOf(q, "query"), q);
    this.q = q;
    void this.tell();
  }

  close(): void {
    if (this.element.hidden) return;
    this.element.hidden = true;
    this.asking.abort();
    this.q = "";
    this.owner.mark(null, undefined);
    this.owner.closed();
  }

  /** Ends what is being searched: the view was left. */
  stop(): void {
    this.stopped = true;
    this.asking.abort();
  }

  private only(): void {
    if (this.input.value) this.owner.only(queryOf(this.input.value, this.mode.value as Mode));
  }

  private save(): void {
    if (this.input.value) this.owner.save(queryOf(this.input.value, this.mode.value as Mode));
  }

  step(forward: boolean): void {
    if (!this.input.value) return;
    // Steps that are typed fast are all taken; another query ends those of the one before.
    if (queryOf(this.input.value, this.mode.value as Mode) !== this.q) this.asking.abort();
    this.steps = this.steps.then(() => this.search(forward));
  }

  private async search(forward: boolean): Promise<void> {
    if (this.stopped) return;
    const mode = this.mode.value as Mode;
    const q = queryOf(this.input.value, mode);
    if (q !== this.q || this.asking.signal.aborted) this.asking = new AbortController();
    const { signal } = this.asking;
    if (q !== this.q) {
      [this.q, this.total, this.at] = [q, null, null];
      this.owner.mark(patternOf(this.input.value, mode), q);
    }
    this.said.textContent = "searching…";
    try {
      const from = await this.owner.current(forward, this.at);
      let hit = await this.finder.next(q, from, forward, signal);
      if (!hit && from) {
        hit = await this.finder.next(q, null, forward, signal);
        if (hit) toast(forward ? "Past the last match: continuing at the first." : "Before the first match: continuing at the last.");
      }
      if (hit) {
        this.at = hit.ulid;
        await this.owner.go(hit);
      }
      await this.tell();
    } catch (error) {
      if (!signal.aborted) this.said.textContent = error instanceof Problem ? error.message : "The service does not answer.";
    }
  }

  /** Says how many there are, and the how-manieth this one is. */
  private async tell(): Promise<void> {
    const { signal } = this.asking;
    try {
      const all = await this.finder.count(this.q, null, signal);
      this.total = all.matches;
      const at = this.at && this.total ? await this.finder.count(this.q, this.at, signal) : null;
      const part = all.complete ? "" : " (not all could be read)";
      this.said.textContent = at ? `${count(at.matches)} of ${plural(this.total, "record")}${part}` : `${plural(this.total, "record")}${part}`;
    } catch (error) {
      if (!signal.aborted) this.said.textContent = error instanceof Problem ? error.message : "The service does not answer.";
    }
  }
}
