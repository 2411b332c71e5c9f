// Lines that are not finished yet: progress bars and prompts, below the last line of a run that is
// live. They come by a stream of their own, and each event has all of them as they are now.

import { pieces } from "./ansi";
import { Problem, events, unfinishedOf } from "./api";
import { h } from "./dom";
import { styled } from "./rows";

const PAUSE_MS = 5000;

interface Shown {
  lines: { producer: string; text: string }[];
}

export class Unfinished {
  readonly element = h("div", { class: "unfinished", hidden: true, role: "status", "aria-label": "Lines that are not finished" });
  private following = false;

  constructor(private readonly fqn: string, private readonly run: string, private readonly signal: AbortSignal) {
    signal.addEventListener("abort", () => this.show([]));
  }

  /** Follows them from now on, until the run is over or the view is closed. */
  async follow(): Promise<void> {
    if (this.following || this.signal.aborted) return;
    this.following = true;
    try {
      while (!this.signal.aborted) {
        if (await this.stream()) return;
        this.show([]);
        await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
      }
    } finally {
      this.following = false;
      this.show([]);
    }
  }

  /** Whether it is over, or never was; false: the connection was lost. */
  private async stream(): Promise<boolean> {
    try {
      for await (const group of events(unfinishedOf(this.fqn, this.run), {}, this.signal)) {
        for (const event of group) {
          if (event.name === "complete") return true;
          this.show((JSON.parse(event.data) as Shown).lines);
        }
      }
    } catch (error) {
      if (error instanceof Problem && error.status < 500 && error.status !== 429) return true;
      if (!this.signal.aborted && !(error instanceof TypeError)) console.debug(String(error));
    }
    return false;
  }

  private show(lines: Shown["lines"]): void {
    this.element.hidden = !lines.length;
    this.element.replaceChildren(...lines.map(({ text }) => h("div", { class: "tx" }, ...pieces(text).pieces.map(styled))));
  }
}
