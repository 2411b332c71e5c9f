// The chart of a run over time; what is chosen in it is a place to go to.

import { records, type LogRecord } from "./api";
import { chart } from "./chart";
import { h, time, toast } from "./dom";
import { histogram } from "./find";

interface Owner {
  go: (record: LogRecord) => Promise<void>;
  say: (error: unknown) => void;
  /** The end of a run that is over, as a ULID; until then a chart ends now. */
  end: () => string | undefined;
}

const BUCKETS = 120;

export class Bars {
  readonly element = h("div", { class: "bars-box", hidden: true });

  constructor(private readonly fqn: string, private readonly run: string, private readonly signal: AbortSignal, private readonly owner: Owner) {}

  async show(on: boolean): Promise<void> {
    this.element.hidden = !on;
    if (!on) return;
    this.element.replaceChildren("Counting…");
    try {
      const params = { fqn: this.fqn, run: this.run, from: 0, to: this.owner.end(), buckets: BUCKETS };
      const found = await histogram(params, this.signal);
      this.element.replaceChildren(chart(found, (from) => void this.zoom(from)));
    } catch (error) {
      this.element.hidden = true;
      this.owner.say(error);
    }
  }

  /** Goes to the first line since a time: also from a time without any. */
  private async zoom(from: number): Promise<void> {
    try {
      const params = { fqn: this.fqn, run: this.run, from, limit: 1, order: "asc" };
      const found = await records("query", params, this.signal);
      if (found.records[0]) await this.owner.go(found.records[0]);
      else toast(`No lines since ${time(from)}.`);
    } catch (error) {
      this.owner.say(error);
    }
  }
}
