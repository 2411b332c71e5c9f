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

  constructor(private readonly fqn: string, private readonly run: string, signal: AbortSignal) {
    signal.addEventListener("abort", () => this.show([]));
  }

  /** Follows them until the run is over, or the view's turn: then what is shown stays for the next one. */
  async follow(turn: AbortSignal): Promise<void> {
    while (!turn.aborted) {
      const over = await this.stream(turn);
      if (turn.aborted) return;
      this.show([]);
      if (over) return;
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    }
  }

  /** Whether it is over, or never was; false: the connection was lost. */
  private async stream(turn: AbortSignal): Promise<boolean> {
    try {
      for await (const group of events(unfinishedOf(this.fqn, this.run), {}, turn)) {
        for (const event of group) {
          if (event.name === "complete") return true;
          this.show((JSON.parse(event.data) as Shown).lines);
        }
      }
    } catch (error) {
      if (error instanceof Problem && error.status < 500 && error.status !== 429) return true;
      if (!turn.aborted && !(error instanceof TypeError)) console.debug(String(error));
    }
    return false;
  }

  private show(lines: Shown["lines"]): void {
    this.element.hidden = !lines.length;
    this.element.replaceChildren(...lines.map(({ text }) => h("div", { class: "tx" }, ...pieces(text).pieces.map(styled))));
  }
}
