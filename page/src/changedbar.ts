// The bar that says what is new in a run since the last successful one, and leads there.

import { Problem } from "./api";
import { pieces } from "./ansi";
import { changes, lastGood, type Changes } from "./changed";
import { bytes, count, h, plural } from "./dom";
import { runLink } from "./place";
import { styled } from "./rows";

interface Owner {
  /** The line at which a person is. */
  at: () => number;
  go: (n: number) => void;
  mark: (lines: Set<number>) => void;
  closed: () => void;
}

export class ChangedBar {
  readonly element: HTMLElement;
  private readonly said = h("span", { class: "said", role: "status" });
  private readonly list = h("ol", { class: "kinds", "aria-label": "Kinds of new lines" });
  private readonly steps: HTMLElement;
  private asking = new AbortController();
  private found: Changes | null = null;

  constructor(private readonly fqn: string, private readonly run: string, private readonly owner: Owner) {
    const button = (label: string, title: string, act: () => void): HTMLElement =>
      h("button", { type: "button", title, "aria-label": label.length > 1 ? undefined : title, onclick: act }, label);
    this.steps = h("span", { class: "steps", hidden: true }, button("↑", "Previous new line (C)", () => this.step(false)), button("↓", "Next new line (c)", () => this.step(true)));
    this.element = h("section", { class: "changed", hidden: true, "aria-label": "New since the last successful run" }, h("div", { class: "line" }, this.said, this.steps, h("span", { class: "space" }), button("Compare again", "Read both runs again", () => void this.compare()), button("✕", "Close (Esc)", () => this.close())), this.list);
  }

  /** Compares the first time; then goes to the next new line, or the one before. */
  async open(forward = true): Promise<void> {
    if (this.element.hidden) await this.compare();
    else this.step(forward);
  }

  close(): void {
    if (this.element.hidden) return;
    this.asking.abort();
    this.element.hidden = true;
    this.found = null;
    this.owner.mark(new Set());
    this.owner.closed();
  }

  private async compare(): Promise<void> {
    this.asking.abort();
    this.asking = new AbortController();
    const { signal } = this.asking;
    this.element.hidden = false;
    this.steps.hidden = true;
    this.list.replaceChildren();
    this.said.textContent = "Looking for the last successful run…";
    try {
      const good = await lastGood(this.fqn, this.run, signal);
      if (good === null) {
        this.said.textContent = "No run of this pipeline before this one has the outcome succeeded, so there is nothing to compare with.";
        return;
      }
      this.found = await changes(this.fqn, this.run, good, signal, (chars) => (this.said.textContent = `Comparing with ${good}: ${bytes(chars)} read…`));
      this.show(this.found);
    } catch (error) {
      if (!signal.aborted) this.said.textContent = error instanceof Problem ? error.message : "The service does not answer. Compare again.";
    }
  }

  private show(found: Changes): void {
    const other = h("a", { href: runLink(this.fqn, found.against) }, found.against);
    const what = found.total ? `${plural(found.total, "line")} of ${plural(found.kinds.length, "kind")} ${found.total === 1 ? "is" : "are"} new` : `None of ${plural(found.compared, "line")} is new`;
    const note = h("span", { title: "Numbers, ids and times do not count: lines that differ only in them are the same." }, ` since the last success, `);
    this.said.replaceChildren(what, note, other, ...(found.limits ? [` ${found.limits}`] : []));
    this.steps.hidden = !found.total;
    this.list.replaceChildren(
      ...found.kinds.map((kind) => {
        const text = h("span", { class: "tx" }, ...pieces(kind.text).pieces.map(styled));
        return h("li", {}, h("button", { type: "button", onclick: () => this.owner.go(kind.first) }, h("span", { class: "no" }, count(kind.first + 1)), h("span", { class: "times" }, `${count(kind.count)}×`), text));
      }),
    );
    this.owner.mark(new Set(found.lines));
  }

  private step(forward: boolean): void {
    const lines = this.found?.lines;
    if (!lines?.length) return;
    const at = this.owner.at();
    let low = 0;
    let high = lines.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (lines[middle]! < at || (forward && lines[middle] === at)) low = middle + 1;
      else high = middle;
    }
    const n = forward ? lines[low] ?? lines[0]! : lines[low - 1] ?? lines.at(-1)!;
    this.owner.go(n);
  }
}
