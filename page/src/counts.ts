// How often which values of fields occur in all that a search matches, counted by the service: no sample.

import { Problem, json, type Params } from "./api";
import { count, h, plural } from "./dom";

const ROWS = 20;

interface Counted {
  by: string[];
  counts: { values: Record<string, string | null>; records: number }[];
  all_counts: boolean;
  stats: { complete: boolean };
}

/** A value of a field as a condition of a search. */
const conditionOf = (field: string, value: string | null): string => (value === null ? `NOT ${field}:*` : `${field}:"${value.replace(/[\\"]/g, "\\$&")}"`);

export class Counts {
  readonly element: HTMLElement;
  private readonly input = h("input", { type: "text", "aria-label": "Count by fields", placeholder: "level, json.status", autocomplete: "off", spellcheck: "false" });
  private readonly said = h("span", { class: "said", role: "status" });
  private readonly list = h("ol", { class: "counts", "aria-label": "Values and how many records have them" });
  /** Called when other fields are to be counted. */
  onchange: () => void = () => {};

  /** `narrow` gets a condition that somebody chose. */
  constructor(private readonly narrow: (condition: string) => void) {
    const form = h("form", { class: "line" }, h("label", {}, "Count by ", this.input), this.said);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.onchange();
    });
    this.element = h("section", { class: "count-by", "aria-label": "Counts by values" }, form, this.list);
  }

  /** The fields, separated by commas. */
  get by(): string {
    return this.input.value.trim();
  }

  set by(fields: string) {
    this.input.value = fields;
  }

  clear(): void {
    this.said.textContent = "";
    this.list.replaceChildren();
  }

  /** Counts all matches of a search by the fields, if there are some. */
  async show(query: Params, signal: AbortSignal): Promise<void> {
    this.clear();
    if (!this.by) return;
    this.said.textContent = "counting…";
    try {
      const found = await json<Counted>("query/count", { ...query, by: this.by, limit: ROWS }, signal);
      const most = Math.max(1, ...found.counts.map((row) => row.records));
      this.list.replaceChildren(
        ...found.counts.map(({ values, records }) => {
          const condition = found.by.map((field) => conditionOf(field, values[field] ?? null)).join(" ");
          const text = found.by.map((field) => values[field] ?? "none").join(" · ");
          const bar = h("span", { class: "share" });
          bar.style.width = `${(100 * records) / most}%`;
          return h("li", {}, h("button", { type: "button", title: `Only ${condition}`, onclick: () => this.narrow(condition) }, bar, h("span", { class: "times" }, count(records)), h("span", { class: "tx" }, text)));
        }),
      );
      const part = found.stats.complete ? "" : "; not everything could be read";
      this.said.textContent = `${found.all_counts ? plural(found.counts.length, "value") : `the ${found.counts.length} most frequent values`}, of all records${part}`;
    } catch (error) {
      if (!signal.aborted) this.said.textContent = error instanceof Problem ? error.message : "The service does not answer.";
    }
  }
}
