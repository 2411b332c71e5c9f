// Lists: pipelines with their latest runs, and the runs of a pipeline. They renew themselves.

import { Problem, json, logInAnew, logsOf, token, type RunDetails } from "./api";
import { together } from "./attempts";
import { bytes, count, duration, h, plural, sayIn, time, toast } from "./dom";
import { link, runLink } from "./place";
import { lacking, type Silence } from "./silence";

interface RunList extends Silence {
  runs: string[];
  details: RunDetails[];
  after: string | null;
}

const RENEW_MS = 5000;
const RECENT = 12;
const AT_ONCE = 6;
const SHOWN_PIPELINES = 200;
/** Of more pipelines those that are quiet are not asked about each time. */
const FEW = 30;
const QUIET_MS = 600_000;
const SELDOM = 6;

abstract class List {
  readonly element = h("div", { class: "list" });
  protected readonly body = h("tbody");
  protected readonly filters = h("div", { class: "filters" });
  protected readonly table = h("div", { class: "scroll", hidden: true });
  protected readonly note = h("div", { class: "note", role: "status" }, "reading…");
  protected readonly closing = new AbortController();
  private timer = 0;
  private busy = false;

  async open(): Promise<void> {
    document.addEventListener("keydown", this.keyed); // a row that is shown can be reached at once
    await this.renew();
    if (this.closing.signal.aborted) return;
    this.timer = window.setInterval(() => {
      if (!document.hidden) void this.renew();
    }, RENEW_MS);
  }

  close(): void {
    this.closing.abort();
    clearInterval(this.timer);
    document.removeEventListener("keydown", this.keyed);
  }

  protected async renew(): Promise<void> {
    if (this.busy) return;
    this.busy = true;
    try {
      await this.load();
    } catch (error) {
      if (this.closing.signal.aborted) return;
      const text = error instanceof Problem ? error.message : "The service does not answer. The page tries again.";
      if (error instanceof Problem && error.status === 403) {
        this.show([]);
        sayIn(this.note, text, "Use another token", () => void logInAnew());
      } else this.note.textContent = text;
    } finally {
      this.busy = false;
    }
  }

  protected abstract load(): Promise<void>;

  /** Replaces the rows, and leaves the focus where it is. */
  protected show(rows: HTMLElement[]): void {
    this.table.hidden = !rows.length;
    const focused = document.activeElement instanceof HTMLAnchorElement ? document.activeElement.getAttribute("href") : null;
    const inside = focused !== null && this.body.contains(document.activeElement);
    this.body.replaceChildren(...rows);
    if (inside) this.links().find((anchor) => anchor.getAttribute("href") === focused)?.focus();
  }

  private links(): HTMLAnchorElement[] {
    return [...this.body.querySelectorAll<HTMLAnchorElement>("a.main")];
  }

  private keyed = (event: KeyboardEvent): void => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
    const by = { ArrowDown: 1, ArrowUp: -1, ...(typing ? {} : { j: 1, k: -1 }) }[event.key];
    if (event.key === "/" && !typing) {
      event.preventDefault();
      this.element.querySelector<HTMLInputElement>("input")?.focus();
    }
    if (!by || event.target instanceof HTMLSelectElement) return;
    event.preventDefault();
    const links = this.links();
    const at = links.indexOf(document.activeElement as HTMLAnchorElement);
    links[Math.max(0, Math.min(links.length - 1, at + by))]?.focus();
  };
}

/** The outcome of a run, or what its client says of it; its state while nobody says anything. */
export const kindOf = (run: RunDetails): string => (run.outcome === "succeeded" && run.reported === "partialSuccess" ? "partial" : run.outcome ?? run.reported ?? run.state);
const wordOf = (run: RunDetails): string => (run.outcome === "unknown" ? "ended without outcome" : kindOf(run));

export function badge(run: RunDetails, href?: string): HTMLElement {
  return h(href ? "a" : "span", { class: `badge ${kindOf(run)}`, href, title: run.outcome === "lost" ? "Its client gave no sign of life for too long. The run continues when the client reports again." : undefined }, wordOf(run));
}

/** How long a run took, and from what that is known. */
export function took(run: RunDetails): { text: string; title: string } {
  if (run.outcome === null && run.started !== null) return { text: duration(Date.now() - run.started), title: "Since the start that its client reported" };
  if (run.took === null) return { text: "", title: "" };
  return { text: duration(run.took), title: run.tookFrom === "reported" ? "From the start to the end that its client reported" : "From its first to its last line: its client did not report start and end" };
}

/** Attempts before the newest, each a link to its run. */
function earlier(fqn: string, attempts: RunDetails[]): HTMLElement[] {
  return attempts.slice(0, -1).map((run) => {
    const title = `Attempt ${run.attempt}: ${wordOf(run)}, ${plural(run.lines ?? 0, "line")}, ${bytes(run.bytes)}, ${age(run.last)}`;
    return h("a", { class: `badge ${kindOf(run)}`, href: runLink(fqn, run.runId), title }, `#${run.attempt} ${wordOf(run)}`);
  });
}

/** A link to the last two attempts. */
function sideBySide(fqn: string, attempts: RunDetails[]): HTMLElement | null {
  const [one, two] = attempts.slice(-2).map((run) => run.runId);
  if (one === undefined || two === undefined) return null;
  return h("a", { class: "beside", href: link("compare", [fqn, one, two]), title: "The last two attempts side by side" }, "⇄ side by side");
}

const age = (at: number | null): string => (at === null ? "" : `${duration(Date.now() - at).split(" ").slice(0, 2).join(" ")} ago`);

/** Lines a second over the whole run; of an open one, since the list was last read. */
function rate(run: RunDetails, before: { lines: number; at: number } | undefined): string {
  if (run.lines === null || run.first === null || run.last === null) return "";
  if (run.state === "open" && before && Date.now() - before.at > 1000) {
    const now = ((run.lines - before.lines) * 1000) / (Date.now() - before.at);
    return now > 0 ? `${count(Math.ceil(now))}/s` : "";
  }
  const seconds = (run.last - run.first) / 1000;
  return seconds >= 1 ? `${count(Math.ceil(run.lines / seconds))}/s` : "";
}

function cells(run: RunDetails, before?: { lines: number; at: number }, href?: string, others: HTMLElement[] = [], beside: HTMLElement | null = null): HTMLElement[] {
  const last = run.last === null ? "" : time(run.last);
  const attempts = others.length ? h("span", { class: "attempts" }, ...others) : null;
  return [
    h("td", {}, attempts, badge(run, href), run.attempt !== null ? h("span", { class: "attempt" }, `attempt ${run.attempt}`) : null, beside),
    h("td", { class: "wide" }, run.state),
    h("td", { class: "n wide" }, run.lines === null ? "" : count(run.lines)),
    h("td", { class: "n wide" }, bytes(run.bytes)),
    h("td", { class: "n wide" }, rate(run, before)),
    h("td", { class: "wide", title: took(run).title || undefined }, took(run).text),
    h("td", { title: last }, age(run.last)),
  ];
}

const heads = (first: string[]): HTMLElement =>
  h("thead", {}, h("tr", {}, ...first.map((name, at) => h("th", { scope: "col", class: at ? "wide" : undefined }, name)), h("th", { scope: "col" }, "Outcome"), h("th", { scope: "col", class: "wide" }, "State"), ...([["Lines", "n wide"], ["Size", "n wide"], ["Rate", "n wide"], ["Took", "wide"], ["Last line", ""]] as const).map(([name, kind]) => h("th", { scope: "col", class: kind }, name))));

/** The outcomes of the latest runs, oldest first, each a link to its run. */
function strip(fqn: string, runs: RunDetails[]): HTMLElement {
  const dots = runs.slice().reverse().map((run) => {
    const title = `${run.runId}: ${wordOf(run)}${run.last === null ? "" : `, ${age(run.last)}`}`;
    return h("a", { class: `dot ${kindOf(run)}`, href: runLink(fqn, run.runId), title, "aria-label": title, tabindex: "-1" });
  });
  return h("span", { class: "recent" }, ...dots);
}

/** The first thing that somebody sees who has just started a service. */
function welcome(): HTMLElement {
  const target = new URL(`${logsOf("shop.orders")}/run-1`, document.baseURI).href;
  const rights = token() === null ? "" : ` \\\n  -H "Authorization: Bearer $TAILRACE_TOKEN"`;
  const command = `curl -X POST -H 'Content-Type: text/plain'${rights} \\\n  --data-binary $'hello\\nworld\\n' \\\n  ${target}`;
  const copy = h("button", { type: "button", onclick: () => void navigator.clipboard?.writeText(command).then(() => toast("Copied. Paste it into a terminal.")) }, "Copy");
  return h(
    "div",
    { class: "welcome" },
    h("h2", {}, "Nothing was written yet"),
    h("p", {}, "A pipeline appears here when it sends its first line. Try it, in a terminal:"),
    h("code", { tabindex: "0" }, command),
    navigator.clipboard ? copy : null,
    rights ? h("p", { class: "note" }, "TAILRACE_TOKEN is a token with the scope ingest.") : null,
    h("p", { class: "note" }, "Its run appears on this page by itself. Open it and post more lines: they come as you send them."),
  );
}

export class PipelineList extends List {
  private readonly filter: HTMLInputElement;
  private latest = new Map<string, RunDetails>();
  private recent = new Map<string, RunDetails[]>();
  private before = new Map<string, { runId: string; lines: number; at: number }>();
  private readAt = new Map<string, number>();
  private renewals = 0;

  constructor(name: string) {
    super();
    this.filter = h("input", { type: "search", "aria-label": "Pipelines whose names begin with this", placeholder: "Name begins with…  (* is any text)", value: name });
    this.filter.addEventListener("input", () => {
      history.replaceState(null, "", link("", [], { name: this.filter.value }));
      void this.renew();
    });
    this.filters.append(this.filter);
    this.table.append(h("table", {}, heads(["Pipeline", "Recent", "Latest run"]), this.body));
    this.element.append(h("h1", {}, "Pipelines"), this.filters, this.table, this.note);
  }

  protected async load(): Promise<void> {
    const { signal } = this.closing;
    const found = await json<{ pipelines: string[]; after: string | null } & Silence>(logsOf(), { name: this.filter.value, limit: SHOWN_PIPELINES }, signal);
    const names = found.pipelines;
    this.draw(names);
    const everyone = names.length <= FEW || this.renewals++ % SELDOM === 0;
    const waiting = names.filter((name) => everyone || Date.now() - (this.latest.get(name)?.last ?? Infinity) < QUIET_MS);
    const work = async (): Promise<void> => {
      for (let name = waiting.shift(); name !== undefined; name = waiting.shift()) {
        await this.read(name, signal);
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    this.draw(names);
    const more = found.after ? ` The first ${plural(names.length, "pipeline")} are shown: type a name.` : "";
    const empty = !names.length && !this.filter.value;
    this.filters.hidden = empty;
    if (!empty) this.note.textContent = [names.length ? more : "No pipeline has this name.", lacking(found)].join(" ").trim();
    else if (!this.note.querySelector("code")) this.note.replaceChildren(welcome());
  }

  /** Reads a pipeline's latest run; those before it only when there is another one, or it has ended. */
  private async read(name: string, signal: AbortSignal): Promise<void> {
    const list = await json<RunList>(logsOf(name), { limit: 1 }, signal);
    const old = this.latest.get(name);
    if (old) this.before.set(name, { runId: old.runId, lines: old.lines ?? 0, at: this.readAt.get(name) ?? 0 });
    const run = list.details[0];
    if (run) this.latest.set(name, run);
    this.readAt.set(name, Date.now());
    if (!run || (old?.runId === run.runId && old.outcome === run.outcome && old.state === run.state)) return;
    this.recent.set(name, (await json<RunList>(logsOf(name), { limit: RECENT }, signal)).details);
  }

  private draw(names: string[]): void {
    const last = (name: string): number => this.latest.get(name)?.last ?? this.latest.get(name)?.started ?? 0;
    const sorted = names.slice().sort((a, b) => last(b) - last(a) || (a < b ? -1 : 1));
    this.show(
      sorted.map((name) => {
        const run = this.latest.get(name);
        const cell = h("td", {}, h("a", { class: "main", href: link("pipeline", [name]) }, name));
        if (!run) return h("tr", {}, cell, ...Array.from({ length: 9 }, () => h("td")));
        return h("tr", {}, cell, h("td", { class: "wide" }, strip(name, (this.recent.get(name) ?? [run]).map((one) => (one.runId === run.runId ? run : one)))), h("td", { class: "id wide" }, h("a", { href: runLink(name, run.runId) }, run.runId)), ...cells(run, this.before.get(name)?.runId === run.runId ? this.before.get(name) : undefined, runLink(name, run.runId)));
      }),
    );
  }
}

const STATES = ["open", "closing", "closed"];
const OUTCOMES = ["running", "succeeded", "failed", "cancelled", "lost", "unknown"];

export class Runs extends List {
  private readonly controls: Record<"state" | "outcome" | "name", HTMLSelectElement | HTMLInputElement>;
  private before = new Map<string, { lines: number; at: number }>();
  private limit = 50;
  private readonly more = h("button", { type: "button", hidden: true }, "More runs");

  constructor(private readonly fqn: string, params: URLSearchParams) {
    super();
    const choose = (name: "state" | "outcome", all: string[]): HTMLSelectElement => {
      const select = h("select", { "aria-label": name }, h("option", { value: "" }, `any ${name}`), ...all.map((value) => h("option", { value }, value)));
      select.value = params.get(name) ?? "";
      return select;
    };
    this.controls = {
      name: h("input", { type: "search", "aria-label": "Runs whose ids begin with this", placeholder: "Run begins with…", value: params.get("name") ?? "" }),
      state: choose("state", STATES),
      outcome: choose("outcome", OUTCOMES),
    };
    for (const control of Object.values(this.controls)) {
      control.addEventListener("input", () => {
        history.replaceState(null, "", link("pipeline", [this.fqn], this.wanted()));
        void this.renew();
      });
    }
    this.more.addEventListener("click", () => {
      this.limit += 100;
      void this.renew();
    });
    this.filters.append(...Object.values(this.controls), h("a", { class: "button", href: link("search", [], { fqn }) }, "Search its lines"));
    this.table.append(h("table", {}, heads(["Run"]), this.body));
    this.element.append(h("h1", {}, fqn), this.filters, this.table, this.more, this.note);
  }

  private wanted(): Record<string, string> {
    return Object.fromEntries(Object.entries(this.controls).map(([name, control]) => [name, control.value]));
  }

  protected async load(): Promise<void> {
    const found = await json<RunList>(logsOf(this.fqn), { ...this.wanted(), limit: this.limit }, this.closing.signal);
    this.more.hidden = found.after === null;
    const none = Object.values(this.wanted()).some(Boolean) ? "No run matches. Change the filters above." : "There is no such pipeline, or it has no runs yet. It appears here when it sends its first line.";
    this.note.textContent = [found.details.length ? "" : none, lacking(found)].join(" ").trim();
    this.show(
      together(found.details).map((attempts) => {
        const run = attempts.at(-1)!;
        const before = this.before.get(run.runId);
        const row = h("tr", {}, h("td", { class: "id" }, h("a", { class: "main", href: runLink(this.fqn, run.runId) }, run.runId)), ...cells(run, before, undefined, earlier(this.fqn, attempts), sideBySide(this.fqn, attempts)));
        this.before.set(run.runId, { lines: run.lines ?? 0, at: Date.now() });
        return row;
      }),
    );
  }
}
