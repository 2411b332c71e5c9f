// Search across runs: the query, a histogram to zoom, the hits, and the way to their context.

import { Problem, address, events, records, type LogRecord, type Params } from "./api";
import { pieces } from "./ansi";
import { chart } from "./chart";
import { completing } from "./complete";
import { Counts } from "./counts";
import { save } from "./copy";
import { h, plural, time, toast } from "./dom";
import { histogram, patternOf } from "./find";
import { link, push, runLink } from "./place";
import { highlight, styled } from "./rows";
import { Turns } from "./turns";

const PAGE = 100;
const MOST_LIVE = 1000;
const TIMES: [string, string][] = [["now-15m", "15 minutes"], ["now-1h", "1 hour"], ["now-6h", "6 hours"], ["now-1d", "1 day"], ["now-7d", "7 days"], ["0", "all time"]];
const SHOWN_CHARS = 2000;

interface Stats {
  matches: number;
  complete: boolean;
  next: string | null;
}

/** Hits that follow each other and are of one run have its name above the first of them. */
function grouped(above: Element | null, below: Element): void {
  below.classList.toggle("same", above?.getAttribute("data-run") === below.getAttribute("data-run"));
}

export class Search {
  readonly element: HTMLElement;
  private readonly input: HTMLInputElement;
  private readonly times: HTMLSelectElement;
  private readonly by: HTMLSelectElement;
  private readonly hits = h("ol", { class: "hits" });
  private readonly bars = h("div", { class: "bars-box", hidden: true });
  private readonly counts = new Counts((condition) => this.narrow(condition));
  private readonly said = h("p", { class: "note", role: "status" });
  private readonly more = h("button", { type: "button", hidden: true }, "Older records");
  private readonly live = h("button", { type: "button", "aria-pressed": "false" }, "Follow live");
  private next: string | null = null;
  private asking = new AbortController();
  private frame = 0;

  constructor(private readonly params: URLSearchParams) {
    this.input = h("input", { type: "search", "aria-label": "Query", placeholder: 'level>=WARN "connection refused" NOT /retry \\d+/', autocomplete: "off", spellcheck: "false", value: params.get("q") ?? "" });
    this.times = h("select", { "aria-label": "Time" }, ...TIMES.map(([value, name]) => h("option", { value }, name)));
    this.by = h("select", { "aria-label": "Which time" }, h("option", { value: "arrival" }, "by arrival"), h("option", { value: "ts" }, "by their own time"));
    this.by.value = params.get("by") === "ts" ? "ts" : "arrival";
    this.showTimes();
    const proposals = completing(this.input, () => this.scope());
    this.counts.by = params.get("count") ?? "";
    this.counts.onchange = () => this.ask();
    const form = h("form", { class: "ask", role: "search" }, h("div", { class: "with-proposals" }, this.input, proposals), this.times, this.by, h("button", { type: "submit", class: "primary" }, "Search"), this.live, h("button", { type: "button", onclick: () => void this.download() }, "Download"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask();
    });
    this.times.addEventListener("change", () => {
      this.params.delete("to");
      this.ask();
    });
    this.by.addEventListener("change", () => this.ask());
    this.more.addEventListener("click", () => void this.page());
    this.live.addEventListener("click", () => void this.follow());
    this.element = h("div", { class: "list search" }, h("h1", {}, "Search"), form, this.narrowed(), this.bars, this.said, this.counts.element, this.hits, this.more);
    document.addEventListener("keydown", this.keyed);
  }

  /** The pipeline and the run to which the search is limited, with a way to take the limit away. */
  private narrowed(): HTMLElement {
    const box = h("div", { class: "narrowed" });
    for (const name of ["fqn", "run"]) {
      const value = this.params.get(name);
      if (!value) continue;
      const button = h("button", { type: "button", title: "Search everywhere", onclick: () => { this.params.delete(name); button.remove(); this.ask(); } }, `${name === "fqn" ? "pipeline" : "run"} ${value} ✕`);
      box.append(button);
    }
    return box;
  }

  private showTimes(): void {
    const from = this.params.get("from") ?? "now-1h";
    if (!TIMES.some(([value]) => value === from)) {
      const to = this.params.get("to");
      const name = `${/^\d+$/.test(from) ? time(Number(from)) : from}${to ? ` to ${/^\d+$/.test(to) ? time(Number(to)) : to}` : ""}`;
      this.times.querySelector("option[data-own]")?.remove();
      this.times.prepend(h("option", { value: from, "data-own": "" }, name));
    }
    this.times.value = from;
  }

  open(): Promise<void> {
    this.input.focus();
    return this.run();
  }

  close(): void {
    this.asking.abort();
    cancelAnimationFrame(this.frame);
    highlight("found", [], null);
    document.removeEventListener("keydown", this.keyed);
  }

  /** Marks in the hits what the query names, at the next frame. */
  private mark(): void {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      highlight("found", this.hits.querySelectorAll(".tx"), patternOf(this.input.value, "query"));
    });
  }

  private scope(): Record<string, string> {
    const scope: Record<string, string> = { from: this.times.value, ...(this.by.value === "ts" ? { time: "ts" } : {}) };
    for (const name of ["fqn", "run", "to"]) {
      const value = this.params.get(name);
      if (value) scope[name] = value;
    }
    return scope;
  }

  private query(): Params {
    return { ...this.scope(), q: this.input.value };
  }

  /** Searches for what also meets a condition. */
  private narrow(condition: string): void {
    const q = this.input.value.trim();
    this.input.value = q ? `${/\bOR\b|\|\|/.test(q) ? `(${q})` : q} ${condition}` : condition;
    this.ask();
  }

  private ask(): void {
    this.params.set("q", this.input.value);
    this.params.set("from", this.times.value);
    if (this.by.value === "ts") this.params.set("by", "ts");
    else this.params.delete("by");
    if (this.counts.by) this.params.set("count", this.counts.by);
    else this.params.delete("count");
    push(link("search", [], Object.fromEntries(this.params)));
    void this.run();
  }

  private async run(): Promise<void> {
    this.asking.abort();
    this.asking = new AbortController();
    this.live.setAttribute("aria-pressed", "false");
    this.hits.replaceChildren();
    this.next = null;
    this.said.textContent = "searching…";
    void this.count(this.asking.signal);
    void this.counts.show(this.query(), this.asking.signal);
    await this.page();
  }

  private async count(signal: AbortSignal): Promise<void> {
    try {
      const found = await histogram({ ...this.query(), buckets: 100 }, signal);
      this.bars.hidden = !found.buckets.length;
      this.bars.replaceChildren(chart(found, (from, to) => this.zoom(from, to)));
      this.said.textContent = `${plural(found.stats.matches, "record")}${this.by.value === "ts" ? ", by the time in the lines" : ""}${found.stats.complete ? "" : "; not everything could be read"}`;
      if (!found.stats.matches) this.suggest();
    } catch (error) {
      if (!signal.aborted) this.say(error);
    }
  }

  /** What may help where nothing was found. */
  private suggest(): void {
    this.bars.hidden = true;
    if (this.times.value === "0") return;
    const wider = h("button", { type: "button", onclick: () => { this.params.delete("to"); this.times.value = "0"; this.ask(); } }, "Search all time");
    this.hits.replaceChildren(h("li", { class: "nothing" }, "Nothing matches in this time. ", wider));
  }

  private zoom(from: number, to: number): void {
    this.params.set("from", String(from));
    this.params.set("to", String(to));
    this.showTimes();
    this.ask();
  }

  private async page(): Promise<void> {
    const { signal } = this.asking;
    this.more.disabled = true;
    try {
      const found = await records<Stats>("query", { ...this.query(), limit: PAGE, after: this.next ?? undefined }, signal);
      if (found.records.length) this.hits.querySelector(".nothing")?.remove();
      for (const record of found.records) {
        const hit = this.hit(record);
        grouped(this.hits.lastElementChild, hit);
        this.hits.append(hit);
      }
      this.mark();
      this.next = found.stats.next;
      this.more.hidden = this.next === null || found.records.length < PAGE;
    } catch (error) {
      if (!signal.aborted) this.say(error);
    }
    this.more.disabled = false;
  }

  private say(error: unknown): void {
    this.bars.hidden = true;
    this.said.textContent = error instanceof Problem ? error.message : "The service does not answer.";
  }

  private hit(record: LogRecord): HTMLElement {
    const lines = record.message.split("\n");
    const text = h("span", { class: "tx" }, ...pieces(lines[0]!.slice(0, SHOWN_CHARS)).pieces.map(styled));
    const more = lines.length > 1 ? h("small", {}, ` + ${plural(lines.length - 1, "line")}`) : null;
    const params = { line: record.ulid, q: this.input.value };
    return h(
      "li",
      { class: `lv-${record.level ?? ""}`, "data-run": JSON.stringify([record.fqn, record.run_id]) },
      h("a", { class: "where", href: runLink(record.fqn, record.run_id), tabindex: "-1" }, h("b", {}, record.fqn), ` / ${record.run_id}`),
      h("a", { class: "main", href: runLink(record.fqn, record.run_id, params) }, h("span", { class: "at" }, record.ts ? time(record.ts) : ""), h("span", {}, text, more)),
    );
  }

  private async follow(): Promise<void> {
    if (this.live.getAttribute("aria-pressed") === "true") {
      this.asking.abort();
      this.live.setAttribute("aria-pressed", "false");
      return;
    }
    this.asking.abort();
    this.asking = new AbortController();
    const { signal } = this.asking;
    this.live.setAttribute("aria-pressed", "true");
    this.more.hidden = true;
    this.bars.hidden = true;
    this.counts.clear();
    this.hits.replaceChildren();
    const turns = new Turns(signal);
    let cursor: string | undefined;
    let came = 0;
    this.said.textContent = "Following matches in all runs. Newest first.";
    for (let failures = 0; !signal.aborted; failures++) {
      try {
        const { from: _, to: __, time: ___, ...params } = this.query();
        await turns.take(async (turn) => {
          for await (const group of events("query/stream", { ...params, ...(cursor ? { after: cursor } : { tail: 20 }) }, turn)) {
            failures = 0;
            for (const event of group) {
              if (event.id !== null) cursor = event.id;
              if (event.name === "gap") toast("Some records may be missing here: search for them.");
              if (event.name === "error") throw new Error(event.data);
              if (event.name !== "message" || !event.data) continue;
              const hit = this.hit(JSON.parse(event.data) as LogRecord);
              if (this.hits.firstElementChild) grouped(hit, this.hits.firstElementChild);
              this.hits.prepend(hit);
              came++;
            }
            this.mark();
            while (this.hits.childElementCount > MOST_LIVE) this.hits.lastElementChild?.remove();
            this.said.textContent = `Following matches in all runs: ${plural(came, "record")}. Newest first.`;
          }
        });
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof DOMException && error.name === "AbortError") continue; // another view's turn
        this.said.textContent = error instanceof Problem ? error.message : "The connection was lost. The page tries again.";
        if (error instanceof Problem && error.status < 500) return;
      }
      await new Promise((resolve) => setTimeout(resolve, Math.min(500 * 2 ** failures, 8000)));
    }
  }

  private async download(): Promise<void> {
    const path = address("query", { ...this.query(), order: "asc", format: "text" });
    await save(path, "search.log").catch((error: unknown) => this.say(error));
  }

  private keyed = (event: KeyboardEvent): void => {
    const down = event.target === this.input && event.key === "ArrowDown"; // out of the query into its hits
    if (((event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement) && !down) || document.querySelector("dialog[open]")) return;
    if (event.key === "/" || (event.ctrlKey && event.key === "f")) {
      event.preventDefault();
      this.input.focus();
    }
    const by = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1 }[event.key];
    if (!by || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const links = [...this.hits.querySelectorAll<HTMLAnchorElement>("a.main")];
    const at = links.indexOf(document.activeElement as HTMLAnchorElement);
    links[Math.max(0, Math.min(links.length - 1, at + by))]?.focus();
  };
}
