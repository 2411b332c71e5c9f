// Which lines are folded away. What a line needs to know is near it: frames of a stack follow
// each other, lines of one record know their record, and a group that is short and whole within
// what is loaded is found from its first line.

import type { Row, RunLines } from "./lines";

const FRAME = /^\s+(at\s+\S|File ")|^\s+\.\.\. \d+ (more|common)/;
const UNDER_FILE = /^\s{4,}\S/;
const IN_FILE = /^\s+File "/;
const GROUP = /^(?:\S+ )?(?:::|##\[)group(?:::|\])(.*)/;
const END = /^(?:\S+ )?(?:::|##\[)endgroup(?:::|\])/;
const LONG_RECORD = 4;
const LONGEST_GROUP = 5000;
/** So many groups whose end is not loaded are looked at again when more is. */
const MOST_ENDLESS = 100;

export interface Fold {
  key: string;
  /** Lines that are hidden while it is folded. */
  lines: number;
  open: boolean;
  title?: string;
}

export class Folds {
  private turned = new Set<string>();
  private groups = new Map<number, number>();
  /** Groups that were folded, or left open because somebody reads in them. */
  private met = new Set<number>();
  /** Groups whose end is not loaded. */
  private endless = new Set<number>();
  private revealed = -1;
  /** The lines that somebody reads now. */
  read: () => number[] = () => [];

  constructor(private readonly lines: RunLines) {
    lines.onloaded = (from, to) => this.foldGroups(from, to);
  }

  toggle(fold: Fold, n: number): void {
    if (fold.title !== undefined) this.turn(n, fold);
    else if (this.turned.has(fold.key)) this.turned.delete(fold.key);
    else this.turned.add(fold.key);
  }

  private turn(n: number, fold: Fold): void {
    if (fold.open) this.groups.set(n, n + fold.lines);
    else this.groups.delete(n);
  }

  /** Opens whatever hides the line. */
  reveal(n: number): void {
    this.revealed = n;
    for (const [start, end] of this.groups) if (n > start && n <= end) this.groups.delete(start);
    const row = this.lines.row(n);
    if (row) this.turned.add(`r${row.entry.first}`);
    if (this.frame(n)) this.turned.add(`f${this.head(n)}`);
  }

  private frame(n: number): boolean {
    const row = this.lines.row(n);
    if (!row || row.entry.count > 1) return false;
    if (FRAME.test(row.text)) return true;
    const before = this.lines.row(n - 1);
    if (!before || before.entry.count > 1 || !UNDER_FILE.test(row.text)) return false;
    // Source, and the marks below it, follow the place in a file.
    if (IN_FILE.test(before.text)) return true;
    const place = this.lines.row(n - 2);
    return /^\s+[\^~]+\s*$/.test(row.text) && place !== undefined && IN_FILE.test(place.text);
  }

  private head(n: number): number {
    for (let step = 0; step < 2000 && n > 0 && this.frame(n - 1); step++) n--;
    return n;
  }

  hidden(n: number): boolean {
    for (const [start, end] of this.groups) if (n > start && n <= end) return true;
    const row = this.lines.row(n);
    if (!row) return false;
    const { first, count } = row.entry;
    if (count > LONG_RECORD) {
      return n > first && n < first + count - 1 && !this.turned.has(`r${first}`);
    }
    return this.frame(n) && this.frame(n - 1) && !this.turned.has(`f${this.head(n)}`);
  }

  /** The fold that begins at a line. */
  at(n: number, row: Row): Fold | null {
    const { first, count } = row.entry;
    if (count > LONG_RECORD) {
      if (n !== first) return null;
      return { key: `r${first}`, lines: count - 2, open: this.turned.has(`r${first}`) };
    }
    const title = GROUP.exec(row.text)?.[1];
    if (title !== undefined) {
      const end = this.groups.get(n) ?? this.end(n);
      return end ? { key: `g${n}`, lines: end - n, open: !this.groups.has(n), title } : null;
    }
    if (this.frame(n) && !this.frame(n - 1) && this.frame(n + 1)) {
      let end = n + 1;
      while (end - n < 2000 && this.frame(end)) end++;
      return { key: `f${n}`, lines: end - n - 1, open: this.turned.has(`f${n}`) };
    }
    return null;
  }

  private end(n: number): number | null {
    let depth = 0;
    for (let at = n + 1; at < n + LONGEST_GROUP; at++) {
      const row = this.lines.row(at);
      if (!row) return null;
      if (GROUP.test(row.text)) depth++;
      else if (END.test(row.text) && depth-- === 0) return at;
    }
    return null;
  }

  /** Folds, once, groups that are whole since these lines are loaded, and in which nobody reads. */
  private foldGroups(from: number, to: number): void {
    const read = [this.revealed, ...this.read()];
    for (const n of this.endless) this.fold(n, read);
    for (let n = from; n < to; n++) {
      const row = this.lines.row(n);
      if (row && !this.met.has(n) && GROUP.test(row.text)) n = this.fold(n, read);
    }
    for (const n of this.endless) if (this.endless.size > MOST_ENDLESS) this.endless.delete(n);
  }

  /** Folds a group; its last line, its first while the last is not loaded. */
  private fold(n: number, read: number[]): number {
    const end = this.end(n);
    if (end === null && !this.lines.row(n + LONGEST_GROUP - 1)) {
      this.endless.add(n);
      return n;
    }
    this.endless.delete(n);
    this.met.add(n);
    if (end === null) return n;
    if (!read.some((line) => line > n && line <= end)) this.groups.set(n, end);
    return end;
  }
}
