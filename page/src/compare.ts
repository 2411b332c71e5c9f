// Two runs side by side, each with all that the view of a run has. Keys go to the side that was
// clicked or focused last.

import { Problem, type RunDetails } from "./api";
import { latest } from "./attempts";
import { h, toast } from "./dom";
import { badge, kindOf } from "./home";
import { link, runLink } from "./place";
import { RunView } from "./run";

export class Compare {
  readonly element = h("div", { class: "compare" });
  private readonly views: RunView[];
  private readonly heads: HTMLElement[];
  private readonly closing = new AbortController();

  constructor(private readonly fqn: string, private readonly runs: [string, string]) {
    this.views = runs.map((run) => new RunView(fqn, run, new URLSearchParams(), true));
    this.heads = runs.map((run) => h("div", { class: "side" }, h("a", { href: runLink(fqn, run) }, run)));
    this.views.forEach((view, at) => this.element.append(h("section", { "aria-label": `Run ${runs[at]}` }, this.heads[at]!, view.element)));
  }

  async open(): Promise<void> {
    void this.chosen();
    await Promise.all(this.views.map((view) => view.open()));
  }

  close(): void {
    this.closing.abort();
    for (const view of this.views) view.close();
  }

  private async chosen(): Promise<void> {
    try {
      const found = await latest(this.fqn, this.closing.signal);
      this.heads.forEach((head, at) => this.head(head, at, found));
    } catch (error) {
      if (!this.closing.signal.aborted) toast(error instanceof Problem ? error.message : "The list of runs could not be read.");
    }
  }

  private head(head: HTMLElement, at: number, runs: RunDetails[]): void {
    const run = this.runs[at]!;
    const names = runs.map((one) => one.runId);
    if (!names.includes(run)) names.unshift(run);
    const said = (name: string): string => {
      const one = runs.find((other) => other.runId === name);
      return [name, one?.attempt != null ? `attempt ${one.attempt}` : "", one ? kindOf(one) : ""].filter(Boolean).join(" · ");
    };
    const select = h("select", { "aria-label": at ? "Run on the right" : "Run on the left" }, ...names.map((name) => h("option", { value: name }, said(name))));
    select.value = run;
    select.addEventListener("change", () => {
      const pair = this.runs.slice();
      pair[at] = select.value;
      location.hash = link("compare", [this.fqn, ...pair]);
    });
    const details = runs.find((one) => one.runId === run);
    head.replaceChildren(select, ...(details ? [badge(details)] : []), h("span", { class: "space" }), h("a", { href: runLink(this.fqn, run) }, "Open"));
  }
}
