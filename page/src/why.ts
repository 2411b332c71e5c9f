// What a failed run says of its failure, above its lines: its first and its last error, each a way
// to its line, and how many there are.

import { Problem, json, logsOf, type LogRecord, type RunDetails } from "./api";
import { pieces } from "./ansi";
import { h, plural } from "./dom";
import type { Finder } from "./find";
import { styled } from "./rows";

export const SEVERE = "level>=ERROR carried:false";
const BAD = new Set(["failed", "partial"]);
const SHOWN_CHARS = 500;

/** What the list of runs says of one run; null while nothing is known of it. */
export async function detailsOf(fqn: string, run: string, signal: AbortSignal): Promise<RunDetails | null> {
  const found = await json<{ details: RunDetails[] }>(logsOf(fqn), { name: run, limit: 50 }, signal);
  return found.details.find((one) => one.runId === run) ?? null;
}

export class Why {
  readonly element = h("section", { class: "why", hidden: true, "aria-label": "Errors of the run" });
  private shown = "";

  constructor(private readonly finder: Finder, private readonly go: (record: LogRecord) => void) {}

  /** Shows the errors of a run that failed, once for each outcome. */
  async show(outcome: string | null, signal: AbortSignal): Promise<void> {
    if (!outcome || !BAD.has(outcome) || this.shown === outcome) return;
    this.shown = outcome;
    try {
      const [first, last] = await Promise.all([true, false].map((forward) => this.finder.next(SEVERE, null, forward, signal)));
      if (!first || !last) return;
      const all = await this.finder.count(SEVERE, null, signal);
      const same = first.message === last.message;
      const rows = same ? [this.row("Error", first)] : [this.row("First error", first), this.row("Last error", last)];
      const said = h("span", { class: "said" }, plural(all.matches, "error"));
      const close = h("button", { type: "button", class: "close", title: "Close", "aria-label": "Close the errors", onclick: () => (this.element.hidden = true) }, "✕");
      this.element.replaceChildren(h("ol", {}, ...rows), said, close);
      this.element.hidden = false;
    } catch (error) {
      // It is an offer: without an answer the keys for errors say why.
      this.shown = "";
      if (!(error instanceof Problem) && !signal.aborted) console.debug(String(error));
    }
  }

  private row(label: string, record: LogRecord): HTMLElement {
    const text = record.message.split("\n", 1)[0]!.slice(0, SHOWN_CHARS);
    const act = (): void => this.go(record);
    return h("li", {}, h("button", { type: "button", onclick: act }, h("b", {}, label), h("span", { class: "tx" }, ...pieces(text).pieces.map(styled))));
  }
}
