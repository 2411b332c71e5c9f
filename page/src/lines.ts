// The lines of a run by their numbers: blocks that are fetched when they are wanted and dropped
// when they are far away, and a live end that goes on from the last cursor over every reconnect.

import { Problem, events, json, records, runOf, streamOf, type LogRecord, type Params } from "./api";
import type { Silence } from "./silence";
import { Turns } from "./turns";

const BLOCK = 500;
const MAX_BLOCKS = 160;
const MAX_CHARS = 48_000_000;
const PATIENCE_MS = 120;
const OPENED_MS = 150;
/** A line of which nothing but the text is known yet. */
const NOBODY: LogRecord = { ulid: "", ts: null, fqn: "", run_id: "", level: null, connector_id: null, pos: 0, message: "", attributes: null };
/** Longer lines are kept by their beginnings; the rest is fetched when somebody wants it. */
const MAX_LINE = 10_000;

export interface Entry {
  ulid: string;
  ts: string | null;
  level: string | null;
  connector: string | null;
  attributes: Record<string, string> | null;
  carried: boolean;
  /** Number of its first line, and of its lines. */
  first: number;
  count: number;
}

export interface Row {
  entry: Entry;
  text: string;
  /** Characters of the whole line. */
  length: number;
}

interface Block {
  rows: (Row | undefined)[];
  used: number;
  chars: number;
  pending: boolean;
}

interface PageStats extends Silence {
  total: number;
  totalLines: number;
  totalBytes: number;
  state: string;
  firstLine?: number;
  line?: number;
  after: string | null;
  resume?: string;
}

/** A record that was looked for: its first line, and its text if the run has it. */
export interface Located {
  first: number;
  message: string | null;
}

/** How a stream ended: the run is over, the connection was lost, it is another view's turn, or the
 * store answers and has lines before some that are shown. */
type StreamEnd = "over" | "lost" | "turned" | "again";

export type Connection = "connecting" | "live" | "ended" | "lost" | "refused";

function row(entry: Entry, text: string): Row {
  if (text.length <= MAX_LINE) return { entry, text, length: text.length };
  // A slice would keep the whole line in memory.
  const begun = JSON.parse(JSON.stringify(text.slice(0, MAX_LINE))) as string;
  return { entry, text: begun, length: text.length };
}

export class RunLines {
  total = 0;
  bytes = 0;
  state = "none";
  /** Who does not answer, as the service said last. */
  silence: Silence = {};
  connection: Connection = "connecting";
  /** Why the service sends nothing more, if it refuses to. */
  refusal = "";
  /** Lines that came in each of the last seconds. */
  private arrivals: { at: number; lines: number }[] = [];
  private blocks = new Map<number, Block>();
  private tick = 0;
  private chars = 0;
  private cursor: string | null = null;
  private readonly closing = new AbortController();
  private readonly turns = new Turns(this.closing.signal);
  private failures = 0;
  private opened = false;
  private wakeUp: (() => void) | null = null;
  /** Called when lines were read, but for those that came at the live end. */
  onloaded: (from: number, to: number) => void = () => {};
  /** Called when the stream is connected: until `turn` ends, the view may have others beside it. */
  onlive: (turn: AbortSignal) => void = () => {};

  constructor(
    readonly fqn: string,
    readonly run: string,
    /** `appended` is the number of lines that came at the live end. */
    private readonly changed: (appended: number) => void,
    private readonly failed: (error: unknown) => void,
  ) {}

  get path(): string {
    return runOf(this.fqn, this.run);
  }

  /** Reads the end of the run, and follows it. Raises `Problem`. */
  async open(): Promise<void> {
    await this.readEnd();
    void this.follow();
  }

  private async readEnd(): Promise<void> {
    const reading = records<PageStats>(this.path, { tail: BLOCK }, this.closing.signal);
    // The first search of a service opens databases: the text is there sooner than the records.
    const soon = setTimeout(() => void this.preview(), PATIENCE_MS);
    const found = await reading.finally(() => clearTimeout(soon));
    this.opened = true;
    this.noted(found.stats);
    const first = found.stats.firstLine ?? 0;
    // What the preview had is of another moment, at which lines may have had other numbers.
    this.blocks.clear();
    this.chars = 0;
    this.total = this.put(found.records, first);
    this.onloaded(first, this.total);
    // A node of an earlier version says no place to go on from.
    this.cursor = found.stats.after ?? found.stats.resume ?? (String(this.total || "") || null);
    this.changed(0);
  }

  private async preview(): Promise<void> {
    const page = await json<PageStats & { logs: string }>(this.path, { tail: 100 }, this.closing.signal).catch(() => null);
    if (!page?.totalLines || this.opened) return;
    const texts = page.logs.split("\n");
    const first = page.totalLines - texts.length;
    const found = texts.map((message) => ({ ...NOBODY, message }));
    this.noted(page);
    this.total = this.put(found, first);
    this.changed(0);
  }

  close(): void {
    this.closing.abort();
    this.wakeUp?.();
    this.blocks.clear();
  }

  private noted(stats: PageStats): void {
    this.state = stats.state;
    this.silence = { silent: stats.silent, store: stats.store };
    this.bytes = stats.totalBytes;
  }

  /** A line if it is here. */
  row(n: number): Row | undefined {
    return this.blocks.get(Math.floor(n / BLOCK))?.rows[n % BLOCK];
  }

  /** Fetches what of the lines from `from` to before `to` is not here. */
  want(from: number, to: number): void {
    const last = Math.floor((Math.min(to, this.total) - 1) / BLOCK);
    for (let number = Math.max(0, Math.floor(from / BLOCK)); number <= last; number++) {
      const block = this.block(number);
      const end = Math.min(BLOCK, this.total - number * BLOCK);
      if (block.pending) continue;
      for (let at = 0; at < end; at++) {
        if (block.rows[at]) continue;
        void this.fetch(number, block, number * BLOCK + at, number * BLOCK + end);
        break;
      }
    }
  }

  /** Waits until a line is here with its record, or cannot be had. */
  async ready(n: number): Promise<void> {
    for (let tries = 0; tries < 200 && !this.row(n)?.entry.ulid && !this.closing.signal.aborted; tries++) {
      this.want(n, n + 1);
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }

  private block(number: number): Block {
    let block = this.blocks.get(number);
    if (!block) {
      block = { rows: [], used: ++this.tick, chars: 0, pending: false };
      this.blocks.set(number, block);
      this.evict();
    }
    block.used = ++this.tick;
    return block;
  }

  private evict(): void {
    while (this.blocks.size > MAX_BLOCKS || (this.chars > MAX_CHARS && this.blocks.size > 4)) {
      let oldest = -1;
      let used = Infinity;
      for (const [number, block] of this.blocks) {
        if (!block.pending && block.used < used) [oldest, used] = [number, block.used];
      }
      if (oldest < 0) return;
      this.chars -= this.blocks.get(oldest)!.chars;
      this.blocks.delete(oldest);
    }
  }

  private async fetch(number: number, block: Block, from: number, to: number): Promise<void> {
    block.pending = true;
    try {
      while (from < to && !this.closing.signal.aborted) {
        const params: Params = { after: from, limit: to - from };
        const found = await records<PageStats>(this.path, params, this.closing.signal);
        if (!found.records.length) break;
        const end = this.put(found.records, found.stats.firstLine ?? from, this.total);
        this.onloaded(found.stats.firstLine ?? from, end);
        if (end <= from) break;
        from = end;
      }
      this.changed(0);
    } catch (error) {
      if (this.closing.signal.aborted) return;
      this.failed(error);
      // Wait before the next look asks for the same lines again.
      await new Promise((resolve) => setTimeout(resolve, 2000));
      setTimeout(() => this.changed(0));
    } finally {
      block.pending = false;
      if (!this.blocks.has(number)) block.rows = [];
    }
  }

  /** Keeps records of which the first begins at line `first`; returns the line behind them.
   *
   * Lines from `most` on are left to the stream, which says where they stand. */
  private put(found: LogRecord[], first: number, most = Infinity): number {
    for (const record of found) {
      const texts = record.message.split("\n");
      const entry: Entry = {
        ulid: record.ulid,
        ts: record.ts,
        level: record.level,
        carried: record.carried === true,
        connector: record.connector_id,
        attributes: record.attributes,
        first,
        count: texts.length,
      };
      for (const text of texts) {
        if (first >= most) return first;
        const block = this.block(Math.floor(first / BLOCK));
        const before = block.rows[first % BLOCK];
        if (!before?.entry.ulid) {
          const made = row(entry, text);
          if (before) this.dropped(block, before);
          block.rows[first % BLOCK] = made;
          block.chars += made.text.length;
          this.chars += made.text.length;
        }
        first++;
      }
    }
    return first;
  }

  private dropped(block: Block, gone: Row): void {
    block.chars -= gone.text.length;
    this.chars -= gone.text.length;
  }

  /** Lines a second, over the last five. */
  rate(): number {
    const now = performance.now();
    this.arrivals = this.arrivals.filter((arrival) => now - arrival.at < 5000);
    return this.arrivals.reduce((sum, arrival) => sum + arrival.lines, 0) / 5;
  }

  /** Tries at once where a reconnect waits. */
  retry(): void {
    this.wakeUp?.();
  }

  private async follow(): Promise<void> {
    while (!this.closing.signal.aborted) {
      const end = await this.turns.take((turn) => this.stream(turn));
      if (this.closing.signal.aborted) return;
      if (end === "turned") continue;
      if (end === "again" && (await this.readEnd().then(() => true, () => false))) continue;
      await this.size();
      const ended = end === "over";
      if (ended && this.state === "closed") {
        this.become("ended");
        return;
      }
      this.become(ended ? "ended" : this.refusal ? "refused" : "lost");
      // A finished run may go on when its client tries again.
      await this.pause(ended || this.refusal ? 15_000 : Math.min(500 * 2 ** this.failures++, 4000));
    }
  }

  private pause(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.wakeUp = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  private become(connection: Connection): void {
    if (this.connection === connection) return;
    this.connection = connection;
    this.changed(0);
  }

  private async stream(turn: AbortSignal): Promise<StreamEnd> {
    this.refusal = "";
    const params = { format: "ndjson", after: this.cursor ?? undefined };
    let opened = 0;
    let live = (): void => {
      live = () => this.become("live");
      live();
      this.onlive(turn);
    };
    try {
      for await (const group of events(streamOf(this.fqn, this.run), params, turn)) {
        // A silent stream says nothing until its first heartbeat; one that is over says so at once.
        if (!group.length) opened = window.setTimeout(() => live(), OPENED_MS);
        const came: LogRecord[] = [];
        let over = false;
        for (const event of group) {
          if (event.name === "again") return "again";
          if (event.name === "complete") over = true;
          else if (event.name === "silent") void this.heard(JSON.parse(event.data) as { nodes: string[]; store?: true });
          else if (event.name === "error") throw new Error(event.data);
          else if (event.name === "message") {
            came.push(JSON.parse(event.data) as LogRecord);
            if (event.id !== null) this.cursor = event.id;
          }
        }
        if (group.length) this.failures = 0;
        if (group.length && !over) live();
        if (came.length) this.append(came);
        if (over) return "over";
      }
    } catch (error) {
      if (turn.aborted) return "turned";
      if (error instanceof Problem && error.status < 500 && error.status !== 429) this.refusal = error.message;
      else if (!(error instanceof TypeError)) console.debug(String(error));
    } finally {
      clearTimeout(opened);
    }
    return turn.aborted ? "turned" : "lost";
  }

  /** Notes who does not answer, and asks what has become of the run: its close may wait for them. */
  private async heard(said: { nodes: string[]; store?: true }): Promise<void> {
    this.silence = { silent: said.nodes, store: said.store ? "silent" : null };
    await this.size();
    this.changed(0);
  }

  private append(came: LogRecord[]): void {
    const before = this.total;
    if (this.state === "none") this.state = "open";
    this.total = this.put(came, this.total);
    this.bytes += came.reduce((sum, record) => sum + record.message.length + 1, 0);
    this.arrivals.push({ at: performance.now(), lines: this.total - before });
    this.changed(this.total - before);
  }

  private async size(): Promise<void> {
    try {
      this.noted(await json<PageStats>(this.path, { tail: 1 }, this.closing.signal));
    } catch {
      // The service is away: the loop of `follow` tries again.
    }
  }

  /** Finds a record. Raises `Problem` if the run does not hold it. */
  async locate(ulid: string): Promise<Located> {
    const found = await records<PageStats>(this.path, { at: ulid, limit: BLOCK }, this.closing.signal);
    const first = found.stats.firstLine ?? 0;
    const end = this.put(found.records, first, this.total);
    this.onloaded(first, end);
    const message = found.records.find((record) => record.ulid === ulid)?.message ?? null;
    // Lines that are on screen stay where they are.
    return { first: this.lineHere(ulid) ?? found.stats.line ?? first, message };
  }

  private lineHere(ulid: string): number | null {
    for (const { rows } of this.blocks.values()) {
      const there = rows.find((row) => row?.entry.ulid === ulid);
      if (there) return there.entry.first;
    }
    return null;
  }

  /** Lines as they are stored, from `from` to before `to`, read in pages. Raises `Problem`. */
  async text(from: number, to: number, progress?: (lines: number) => void): Promise<string[]> {
    const lines: string[] = [];
    while (from + lines.length < to) {
      const at = from + lines.length;
      const params = { after: at, limit: Math.min(to - at, 20_000) };
      const page = await json<{ logs: string }>(this.path, params, this.closing.signal);
      for (const line of page.logs.split("\n")) lines.push(line);
      progress?.(lines.length);
    }
    lines.length = to - from;
    return lines;
  }

  /** Lines from `from` to before `to` if all of them are here, whole. */
  textHere(from: number, to: number): string[] | null {
    if (to - from > MAX_BLOCKS * BLOCK) return null;
    const lines: string[] = [];
    for (let n = from; n < to; n++) {
      const found = this.row(n);
      if (!found || found.length > found.text.length) return null;
      lines.push(found.text);
    }
    return lines;
  }
}
