// The view of a run: its lines at the live end or anywhere else, and what can be done with them.

import { Problem, logInAnew, type RunDetails } from "./api";
import { before, latest } from "./attempts";
import { Bars } from "./bars";
import { ChangedBar } from "./changedbar";
import { group, keyButton, toggle } from "./controls";
import { copyRange, saveMatches, saveRun } from "./copy";
import { details } from "./details";
import { h, isUtc, plural, sayIn, setUtc, toast } from "./dom";
import { Finder, matchIn } from "./find";
import { FindBar } from "./findbar";
import { Folds } from "./folds";
import { kindOf } from "./home";
import { RunLines } from "./lines";
import { link, replace, runLink } from "./place";
import { statusOf } from "./status";
import { Unfinished } from "./unfinished";
import { LogView } from "./view";
import { SEVERE, Why, detailsOf } from "./why";

/** How often the page asks what has become of a run. */
const LOOK_MS = 10_000;
/** Below this width lines wrap unless somebody said otherwise. */
const NARROW = 640;

export class RunView {
  readonly element: HTMLElement;
  private readonly lines: RunLines;
  private readonly view: LogView;
  private readonly finder: Finder;
  private readonly find: FindBar;
  private readonly news: ChangedBar;
  private readonly why: Why;
  private readonly closing = new AbortController();
  private readonly status = h("span", { class: "status" }, "reading…");
  private readonly fresh = h("button", { class: "fresh", type: "button", hidden: true });
  private readonly followButton: HTMLButtonElement;
  private readonly bars: Bars;
  private known: RunDetails | null = null;
  private looked = 0;
  private connection = "";
  private silence: unknown = null;
  private all = false;
  private newLines = 0;
  private refused = false;
  private opened = false;
  private timer = 0;
  private readonly unfinished: Unfinished;
  private readonly empty = h("p", { class: "note empty", hidden: true });
  /** The view that keys are for, where two are side by side. */
  private static active: RunView | null = null;

  constructor(private readonly fqn: string, private readonly run: string, private readonly params: URLSearchParams, private readonly beside = false) {
    this.lines = new RunLines(fqn, run, (appended) => this.changed(appended), (error) => this.say(error));
    this.view = new LogView(this.lines, new Folds(this.lines), beside && RunView.active !== null ? "found-beside" : "found");
    RunView.active = this;
    this.view.wrap = (localStorage.getItem("wrap") ?? (innerWidth < NARROW ? "yes" : "no")) === "yes";
    this.view.times = localStorage.getItem("times") === "yes";
    this.finder = new Finder(fqn, run);
    this.find = new FindBar(this.finder, {
      current: (forward, last) => this.current(forward, last),
      go: (record) => this.goTo(record.ulid),
      mark: (pattern, q) => {
        this.view.marks.pattern = pattern;
        this.address({ q });
        this.view.schedule();
      },
      save: (q) => void saveMatches(fqn, run, q).catch((error: unknown) => this.say(error)),
      only: (q) => (location.hash = link("search", [], { q, fqn, run, from: "0" })),
      closed: () => this.view.scroller.focus(),
    });
    this.news = new ChangedBar(fqn, run, {
      at: () => this.view.marks.line ?? (this.view.follow ? this.lines.total : this.view.first),
      go: (n) => void this.goToLine(n),
      mark: (lines) => {
        this.view.marks.changed = lines;
        this.view.redraw();
      },
      closed: () => this.view.scroller.focus(),
    });
    this.bars = new Bars(fqn, run, this.closing.signal, {
      go: (record) => this.goTo(record.ulid),
      say: (error) => this.say(error),
      end: () => (this.lines.connection === "ended" ? this.lines.row(this.lines.total - 1)?.entry.ulid || undefined : undefined),
    });
    this.unfinished = new Unfinished(fqn, run, this.closing.signal);
    this.lines.onlive = (turn) => void this.unfinished.follow(turn);
    this.why = new Why(this.finder, (record) => void this.goTo(record.ulid));
    this.followButton = keyButton("Follow", "f", () => this.toggleFollow());
    this.fresh.addEventListener("click", () => this.end());
    this.view.onplace = () => this.placed();
    this.view.onopen = (n) => void details(this.lines, n);
    this.view.onnumber = (n) => this.point(n);
    this.element = h("div", { class: "run" }, h("h1", { class: "unseen" }, run), this.toolbar(), this.why.element, this.find.element, this.news.element, this.bars.element, h("div", { class: "frame" }, this.view.scroller, this.empty, this.fresh), this.unfinished.element);
    for (const name of ["pointerdown", "focusin"]) this.element.addEventListener(name, () => (RunView.active = this));
    this.view.scroller.classList.toggle("wrap", this.view.wrap);
    document.addEventListener("keydown", this.keyed);
    document.addEventListener("copy", this.copied);
    addEventListener("online", this.online);
    document.addEventListener("visibilitychange", this.online);
  }

  private toolbar(): HTMLElement {
    return h(
      "div",
      { class: "tools", role: "toolbar", "aria-label": "Run" },
      this.status,
      h("span", { class: "space" }),
      this.followButton,
      group(
        keyButton("Find", "/", () => this.find.open(), "Find in the whole run"),
        keyButton("First error", "e", () => void this.severe(true)),
        keyButton("Last error", "E", () => void this.severe(false)),
      ),
      group(
        keyButton("What is new", "c", () => void this.news.open(), "Lines that the last successful run did not have"),
        this.beside ? null : keyButton("Compare", "a", () => void this.compare(), "Side by side with the attempt or run before"),
      ),
      group(
        toggle("Chart", "h", false, (on) => void this.bars.show(on)),
        toggle("Wrap", "w", this.view.wrap, (on) => this.set("wrap", on)),
        toggle("Times", "t", this.view.times, (on) => this.set("times", on)),
        toggle("UTC", "u", isUtc(), (on) => {
          setUtc(on);
          this.view.redraw();
        }),
      ),
      keyButton("Download", "d", () => void saveRun(this.fqn, this.run).catch((error: unknown) => this.say(error)), "Download the whole run"),
    );
  }

  private set(name: "wrap" | "times", on: boolean): void {
    this.view[name] = on;
    localStorage.setItem(name, on ? "yes" : "no");
    this.view.scroller.classList.toggle("wrap", this.view.wrap);
    this.view.redraw();
  }

  async open(): Promise<void> {
    this.timer = window.setInterval(() => this.tell(), 1000);
    try {
      await this.begin();
      if (this.closing.signal.aborted) return;
      this.opened = true;
      this.element.classList.remove("nothing");
      this.tell();
      const line = this.params.get("line");
      const q = this.params.get("q");
      if (q) this.find.start(q);
      if (line) await this.goTo(line);
      this.view.schedule();
    } catch (error) {
      if (this.opened) this.say(error);
    }
    this.view.scroller.focus();
  }

  /** Reads the end of the run; again and again while the service does not answer. */
  private async begin(): Promise<void> {
    while (!this.closing.signal.aborted) {
      try {
        return await this.lines.open();
      } catch (error) {
        if (this.closing.signal.aborted) return;
        const [status, text] = error instanceof Problem ? [error.status, error.message] : [503, "The service does not answer. The page tries again."];
        this.status.textContent = status === 404 ? "no such run yet" : "no answer";
        this.element.classList.add("nothing");
        this.empty.hidden = false;
        this.empty.textContent = text;
        if (status === 404) sayIn(this.empty, `There is no pipeline “${this.fqn}” here yet. The page shows the run as soon as it begins. If you expected it, check the names in the address.`, "All pipelines", () => (location.hash = "#/"));
        if (status === 403) {
          this.status.textContent = "no access";
          sayIn(this.empty, text, "Use another token", () => void logInAnew());
        }
        if (status < 500 && status !== 429 && status !== 404) throw error;
        await new Promise((resolve) => setTimeout(resolve, 2000));
      }
    }
  }

  close(): void {
    this.closing.abort();
    clearInterval(this.timer);
    document.removeEventListener("keydown", this.keyed);
    document.removeEventListener("copy", this.copied);
    removeEventListener("online", this.online);
    document.removeEventListener("visibilitychange", this.online);
    if (RunView.active === this) RunView.active = null;
    this.find.stop();
    this.news.close();
    this.lines.close();
    this.view.close();
  }

  private say(error: unknown): void {
    if (this.closing.signal.aborted) return;
    toast(error instanceof Problem ? error.message : "The service does not answer. The page tries again.");
  }

  private online = (): void => {
    if (!document.hidden) this.lines.retry();
  };

  private changed(appended: number): void {
    if (appended && !this.view.follow) this.newLines += appended;
    if (this.connection !== this.lines.connection || this.silence !== this.lines.silence) this.tell();
    if (this.lines.total) {
      this.empty.hidden = true;
      this.element.classList.remove("nothing");
      if (!this.opened) this.status.textContent = "reading…";
    }
    this.view.schedule();
  }

  /** Runs at each drawn frame. */
  private placed(): void {
    const { follow } = this.view;
    if (follow) this.newLines = 0;
    this.fresh.hidden = follow || !this.newLines;
    const label = `▼ ${plural(this.newLines, "new line")}`;
    if (!this.fresh.hidden && this.fresh.textContent !== label) this.fresh.textContent = label;
    const ended = this.lines.connection === "ended";
    const said = ended ? "To the end" : follow ? "Following" : "Follow";
    if (this.followButton.textContent !== said) this.followButton.textContent = said;
    if (ended) this.followButton.removeAttribute("aria-pressed");
    else this.followButton.setAttribute("aria-pressed", String(follow));
  }

  /** Asks what has become of the run: now and then, and when its stream begins or ends. */
  private async look(): Promise<void> {
    this.looked = performance.now();
    try {
      this.known = await detailsOf(this.fqn, this.run, this.closing.signal);
      if (this.known && this.lines.connection === "live") this.lines.state = this.known.state;
      if (!this.beside) void this.why.show(this.known && kindOf(this.known), this.closing.signal);
    } catch {
      // What was known stays; the stream says that the service is away.
    }
    if (!this.closing.signal.aborted) this.tell();
  }

  private tell(): void {
    if (!this.opened) return;
    const { lines } = this;
    const turned = this.connection !== lines.connection;
    this.connection = lines.connection;
    this.silence = lines.silence;
    if (turned || (!document.hidden && lines.connection === "live" && performance.now() - this.looked > LOOK_MS)) void this.look();
    this.empty.hidden = lines.total > 0;
    if (!lines.total) this.empty.textContent = lines.connection === "ended" ? "This run is over and has no lines." : "This run has no lines yet. They appear when they are written. If you expected some, check the names of pipeline and run in the address.";
    if (lines.refusal && !this.refused) toast(`${lines.refusal} The page shows what it has read.`);
    this.refused = !!lines.refusal;
    this.status.replaceChildren(...statusOf(lines, this.beside ? null : this.known));
  }

  // --- the place -----------------------------------------------------------------------

  private address(change: Record<string, string | undefined>): void {
    for (const [name, value] of Object.entries(change)) {
      if (value) this.params.set(name, value);
      else this.params.delete(name);
    }
    if (!this.beside) replace(runLink(this.fqn, this.run, Object.fromEntries(this.params)));
  }

  /** Puts a line into the address. */
  private point(n: number): void {
    const row = this.lines.row(n);
    if (!row) return;
    this.view.marks.line = n;
    this.address({ line: row.entry.ulid });
    this.view.schedule();
    toast("The address now points at this line.");
  }

  /** Where a search begins: at the marked line if it is on screen, else at the last hit, else at what is on screen. */
  private async current(forward: boolean, last: string | null): Promise<string | null> {
    const { line } = this.view.marks;
    const marked = line !== null && line >= this.view.first && line <= this.view.last;
    if (!marked && last) return last;
    const from = marked ? line : this.view.first - (forward ? 1 : 0);
    if (from < 0) return null;
    // Far from here it may still be on its way; without it the search would begin at the run's end.
    await this.lines.ready(from);
    return this.lines.row(from)?.entry.ulid || null;
  }

  /** Goes to a record, and to what a search found in it. */
  private async goTo(ulid: string): Promise<void> {
    const { first, message } = await this.lines.locate(ulid);
    const { marks } = this.view;
    const match = message === null ? null : matchIn(message, marks.pattern);
    marks.match = match && { ...match, line: first + match.line };
    const n = marks.match?.line ?? first;
    marks.line = n;
    this.address({ line: ulid });
    this.view.show(n);
  }

  /** Goes to a line by its number, and puts it into the address. */
  private async goToLine(n: number): Promise<void> {
    this.view.marks.line = n;
    this.view.show(n);
    await this.lines.ready(n);
    const row = this.lines.row(n);
    if (row && this.view.marks.line === n) this.address({ line: row.entry.ulid });
  }

  private async compare(): Promise<void> {
    try {
      const other = before(await latest(this.fqn, this.closing.signal), this.run);
      if (other === null) toast("This pipeline has no other run.");
      else location.hash = link("compare", [this.fqn, other, this.run]);
    } catch (error) {
      this.say(error);
    }
  }

  private end(): void {
    this.view.marks.line = null;
    this.address({ line: undefined });
    this.view.toEnd();
  }

  private toggleFollow(): void {
    if (this.view.follow && this.lines.connection !== "ended") {
      this.view.follow = false;
      this.view.schedule();
    } else this.end();
  }

  private async severe(first: boolean): Promise<void> {
    try {
      const found = await this.finder.next(SEVERE, null, first, this.closing.signal);
      if (found) await this.goTo(found.ulid);
      else toast("This run has no line of level ERROR or FATAL.");
    } catch (error) {
      this.say(error);
    }
  }

  // --- copying ---------------------------------------------------------------------------

  private copied = (event: ClipboardEvent): void => {
    if (RunView.active !== this) return;
    const selected = this.view.selection();
    if (this.all) void copyRange(this.lines, [0, 0], [this.lines.total, 0], event);
    else if (selected) void copyRange(this.lines, selected.from, selected.to, event);
  };

  private selectAll(on: boolean): void {
    this.all = on;
    this.view.scroller.classList.toggle("all", on);
    if (on) toast(`All ${plural(this.lines.total, "line")} are selected. Ctrl-C copies them.`);
  }

  // --- keys --------------------------------------------------------------------------------

  private keyed = (event: KeyboardEvent): void => {
    if (document.querySelector("dialog[open]") || RunView.active !== this) return;
    const command = event.ctrlKey || event.metaKey;
    const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
    if (command && event.key === "f") {
      event.preventDefault();
      this.find.open();
      return;
    }
    if (typing || event.altKey) return;
    if (command) {
      if (event.key === "a") {
        event.preventDefault();
        this.selectAll(true);
      }
      return;
    }
    if (event.key === " " && event.target instanceof HTMLButtonElement) return;
    const act = this.keys[event.key];
    if (act) {
      event.preventDefault();
      act();
      return;
    }
    const button = this.element.querySelector<HTMLButtonElement>(`button[data-key="${CSS.escape(event.key)}"]`);
    if (button) {
      event.preventDefault();
      button.click();
    }
  };

  private move(by: number): void {
    this.view.move(by);
    this.view.settleSoon();
  }

  private readonly keys: Record<string, () => void> = {
    ArrowDown: () => this.move(20),
    j: () => this.move(20),
    ArrowUp: () => this.move(-20),
    k: () => this.move(-20),
    PageDown: () => this.move(this.view.height - 40),
    " ": () => this.move(this.view.height - 40),
    PageUp: () => this.move(40 - this.view.height),
    Home: () => this.view.toStart(),
    g: () => this.view.toStart(),
    End: () => this.end(),
    G: () => this.end(),
    p: () => this.toggleFollow(),
    n: () => this.find.step(true),
    N: () => this.find.step(false),
    C: () => void this.news.open(false),
    Escape: () => {
      this.selectAll(false);
      getSelection()?.removeAllRanges();
      this.find.close();
      this.news.close();
    },
  };
}
