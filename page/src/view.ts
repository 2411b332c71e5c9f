// The list of lines: some rows in the document, however long the run. The place is a line and
// how much of it is above the edge, so nothing that comes above or below moves what is read.
// The scroll bar's range is bounded (browsers end at some 10 million pixels); small movements
// are taken as they are, large ones as a part of the run.

import { count, h } from "./dom";
import type { Folds } from "./folds";
import type { Row, RunLines } from "./lines";
import { highlight, placeOf, rangeOf, rowOf, type Marks } from "./rows";

const RANGE = 4_000_000;
const LEAST_DIGITS = 5;

export class LogView {
  readonly scroller: HTMLElement;
  readonly marks: Marks = { line: null, pattern: null, match: null, changed: new Set() };
  follow = true;
  wrap = false;
  times = false;
  /** Called when following begins or ends, and when the place changes. */
  onplace: () => void = () => {};
  onopen: (n: number) => void = () => {};
  onnumber: (n: number) => void = () => {};
  private readonly layer: HTMLElement;
  private readonly rows: HTMLElement;
  private readonly spacer: HTMLElement;
  private mounted = new Map<number, HTMLElement>();
  private heights = new Map<number, number>();
  private top = 0;
  private offset = 0;
  private rowHeight = 20;
  private lastTop = 0;
  private frame = 0;
  private settling = 0;
  /** Whether the match that was gone to is yet to be brought on screen. */
  private revealing = false;
  private digits = 0;
  private readonly resized: ResizeObserver;

  constructor(private readonly lines: RunLines, readonly folds: Folds, private readonly highlightName = "found") {
    this.rows = h("div", { class: "rows", role: "presentation" });
    this.layer = h("div", { class: "layer" }, this.rows);
    this.spacer = h("div", { class: "spacer" });
    this.scroller = h("div", { class: "log", tabindex: "0", role: "log", "aria-live": "off", "aria-label": "Lines of the run" }, this.spacer, this.layer);
    this.scroller.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.scroller.addEventListener("wheel", (event) => this.wheeled(event), { passive: true });
    this.scroller.addEventListener("click", (event) => this.clicked(event));
    document.addEventListener("selectionchange", this.selected);
    folds.read = () => (this.follow ? [] : [this.top, ...[...this.mounted].filter(([, row]) => !row.matches(".waiting, .pinned")).map(([n]) => n)]);
    this.resized = new ResizeObserver(() => {
      this.heights.clear();
      this.render();
    });
    this.resized.observe(this.scroller);
  }

  close(): void {
    this.resized.disconnect();
    document.removeEventListener("selectionchange", this.selected);
    cancelAnimationFrame(this.frame);
    clearTimeout(this.settling);
    highlight(this.highlightName, [], null);
  }

  get height(): number {
    return this.scroller.clientHeight;
  }

  /** The first line that is on screen. */
  get first(): number {
    return this.top;
  }

  /** The last line that is on screen. */
  get last(): number {
    return Math.max(this.top, ...this.mounted.keys());
  }

  private page(): number {
    return Math.max(1, Math.floor(this.height / this.rowHeight));
  }

  // --- the place ---------------------------------------------------------------------

  /** Shows a line in the upper third. */
  show(n: number): void {
    this.setFollow(false);
    this.folds.reveal(n);
    [this.top, this.offset] = [n, 0];
    this.move(-Math.floor(this.height / 3));
    this.revealing = this.marks.match?.line === n;
    this.settle();
    this.schedule();
  }

  /** Brings the match on screen: in a long line it may be far to the side, or below where it wraps. */
  private reveal(): void {
    const { match } = this.marks;
    const row = match && this.mounted.get(match.line);
    if (!this.revealing || !row || row.matches(".waiting")) return;
    this.revealing = false;
    const found = rangeOf(row.querySelector<HTMLElement>(".tx")!, match.start, match.end).getBoundingClientRect();
    const { scroller } = this;
    const box = scroller.getBoundingClientRect();
    const [left, width] = [found.left - box.left, scroller.clientWidth];
    if (left < 0 || left + found.width > width) {
      const fromStart = left + scroller.scrollLeft;
      scroller.scrollLeft = fromStart + found.width <= width ? 0 : fromStart - width / 3;
    }
    const top = found.top - box.top;
    if (top < 0 || top + found.height > this.height) this.move(top - this.height / 3);
    this.schedule();
  }

  toStart(): void {
    this.setFollow(false);
    [this.top, this.offset] = [0, 0];
    this.settle();
    this.schedule();
  }

  toEnd(): void {
    this.setFollow(true);
    this.schedule();
  }

  /** Moves by pixels; upwards ends following. */
  move(by: number): void {
    if (by < 0 && this.follow) this.setFollow(false);
    this.offset += by;
    this.step();
    if (by > 0 && this.atEnd()) this.setFollow(true);
  }

  private step(): void {
    while (this.offset < 0) {
      const before = this.previous(this.top);
      if (before < 0) {
        this.offset = 0;
        break;
      }
      this.top = before;
      this.offset += this.heightOf(before);
    }
    for (;;) {
      const height = this.heightOf(this.top);
      if (this.offset < height) break;
      const next = this.next(this.top);
      if (next >= this.lines.total) {
        this.offset = 0;
        break;
      }
      this.top = next;
      this.offset -= height;
    }
  }

  private previous(n: number): number {
    for (n--; n >= 0 && this.folds.hidden(n); ) n--;
    return n;
  }

  private next(n: number): number {
    for (n++; n < this.lines.total && this.folds.hidden(n); ) n++;
    return n;
  }

  private heightOf(n: number): number {
    if (!this.wrap) return this.rowHeight;
    const known = this.heights.get(n);
    if (known !== undefined) return known;
    const row = this.lines.row(n);
    if (!row) return this.rowHeight;
    const there = this.mounted.get(n);
    const element = there ?? this.make(n, row);
    if (!there) {
      element.classList.add("measured");
      this.rows.append(element);
    }
    const height = element.offsetHeight || this.rowHeight;
    if (!there) element.remove();
    this.heights.set(n, height);
    return height;
  }

  /** The place at which the last line is at the lower edge. */
  private bottom(): [number, number] {
    let n = this.lines.total;
    let left = this.height - 4;
    while (left > 0) {
      const before = this.previous(n);
      if (before < 0) return [Math.min(n, Math.max(0, this.lines.total - 1)), 0];
      n = before;
      left -= this.heightOf(n);
    }
    return [n, -left];
  }

  private setFollow(follow: boolean): void {
    if (this.follow === follow) return;
    this.follow = follow;
    this.onplace();
  }

  // --- scrolling -----------------------------------------------------------------------

  private range(): number {
    return Math.min(RANGE, Math.max(this.lines.total * this.rowHeight + 4, this.height));
  }

  /** Where the scroll bar is for the place: exact near both ends, a part of the run between. */
  private barAt(): number {
    const range = this.range() - this.height;
    const last = Math.max(1, this.lines.total - this.page());
    const above = this.top * this.rowHeight + Math.min(this.offset, this.rowHeight);
    const near = 2 * this.height;
    const below = Math.max(0, last - this.top) * this.rowHeight;
    let bar = (this.top / last) * range;
    if (this.range() < RANGE) bar = above;
    bar = Math.max(bar, Math.min(above, near));
    return Math.round(Math.min(bar, range - Math.min(below, near)));
  }

  private wheeled(event: WheelEvent): void {
    this.revealing = false;
    if (event.deltaY < 0) this.setFollow(false);
  }

  private scrolled(): void {
    const now = this.scroller.scrollTop;
    const by = now - this.lastTop;
    this.lastTop = now;
    if (Math.abs(by) > 0.5) {
      const range = Math.max(1, this.range() - this.height);
      if (Math.abs(by) > 1.5 * this.height) this.jump(now / range);
      else this.move(by);
      if (by < 0) this.setFollow(false);
      this.settleSoon();
      const stuck = (now <= 0 && this.top > 0) || (now >= range - 1 && !this.atEnd());
      if (stuck) this.settle();
    }
    this.schedule();
  }

  private jump(part: number): void {
    if (this.range() < RANGE && !this.wrap) part = this.scroller.scrollTop / this.rowHeight;
    else part *= Math.max(0, this.lines.total - this.page());
    this.top = Math.max(0, Math.min(this.lines.total - 1, Math.floor(part)));
    this.offset = 0;
    if (this.folds.hidden(this.top)) this.top = Math.max(0, this.previous(this.top));
    this.setFollow(this.atEnd());
  }

  private atEnd(): boolean {
    const [top, offset] = this.bottom();
    return this.top > top || (this.top === top && this.offset >= offset - 2);
  }

  /** Moves the scroll bar to the place when nothing has moved for a while. */
  settleSoon(): void {
    clearTimeout(this.settling);
    this.settling = window.setTimeout(() => this.settle(), 200);
    this.schedule();
  }

  private settle(): void {
    this.resize();
    const bar = this.barAt();
    if (Math.abs(bar - this.scroller.scrollTop) < 1) return;
    this.scroller.scrollTop = bar;
    this.lastTop = this.scroller.scrollTop;
  }

  private resize(): void {
    const height = `${this.range()}px`;
    if (this.spacer.style.height !== height) this.spacer.style.height = height;
    // Texts begin below each other, whatever their numbers.
    const digits = Math.max(LEAST_DIGITS, count(this.lines.total).length);
    if (digits !== this.digits) this.scroller.style.setProperty("--digits", String((this.digits = digits)));
  }

  // --- drawing ---------------------------------------------------------------------------

  /** Draws at the next frame. */
  schedule(): void {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.render();
    });
  }

  /** Draws all rows again, for example with another time zone. */
  redraw(): void {
    this.mounted.forEach((element) => element.remove());
    this.mounted.clear();
    this.heights.clear();
    this.render();
  }

  private render(): void {
    if (!this.height) return;
    this.resize();
    if (this.follow) {
      [this.top, this.offset] = this.bottom();
      this.settle();
    } else {
      const [top, offset] = this.bottom();
      if (this.top > top || (this.top === top && this.offset > offset)) [this.top, this.offset] = [top, offset];
    }
    this.lines.want(this.top - this.page(), this.top + 3 * this.page());
    const wanted: number[] = [];
    let drawn = -this.offset;
    for (let n = this.top; n < this.lines.total && drawn < this.height; n = this.next(n)) {
      wanted.push(n);
      drawn += this.heightOf(n);
    }
    this.mount(wanted);
    this.rows.style.transform = `translate(${-this.scroller.scrollLeft}px, ${-this.offset}px)`;
    const width = this.wrap ? "100%" : `${Math.max(this.rows.scrollWidth, 1)}px`;
    if (this.spacer.style.width !== width) this.spacer.style.width = width;
    highlight(this.highlightName, this.rows.querySelectorAll<HTMLElement>(".tx"), this.marks.pattern);
    this.reveal();
    this.onplace();
  }

  private mount(wanted: number[]): void {
    const keep = this.pinned();
    const all = [...new Set([...wanted, ...keep])].sort((a, b) => a - b);
    const visible = new Set(wanted);
    for (const [n, element] of this.mounted) {
      if (!visible.has(n) && !keep.includes(n)) {
        element.remove();
        this.mounted.delete(n);
      }
    }
    let at: ChildNode | null = this.rows.firstChild;
    for (const n of all) {
      const row = this.lines.row(n);
      let element = this.mounted.get(n);
      const stale = element && (!!row !== !element.classList.contains("waiting") || element.dataset.mark !== this.markOf(n, row));
      if (!element || stale) {
        const made = row ? this.make(n, row) : h("div", { class: "row waiting", "data-n": n }, h("span", { class: "no" }, count(n + 1)), h("span", { class: "tx" }, "…"));
        made.dataset.mark = this.markOf(n, row);
        if (element === at) at = element?.nextSibling ?? null;
        element?.remove();
        this.mounted.set(n, (element = made));
      }
      element.classList.toggle("pinned", !visible.has(n));
      if (element === at) at = at.nextSibling;
      else this.rows.insertBefore(element, at);
    }
    if (!this.rowMeasured && wanted.length && !this.wrap) {
      const height = this.mounted.get(wanted[0]!)!.getBoundingClientRect().height;
      if (height > 4) [this.rowHeight, this.rowMeasured] = [height, true];
    }
  }
  private rowMeasured = false;

  private markOf(n: number, row: Row | undefined): string {
    const fold = row && this.folds.at(n, row);
    const match = this.marks.match?.line === n ? this.marks.match.start : "";
    return `${n === this.marks.line ? "m" : ""}${match}${row?.entry.ulid ? "r" : "t"}${fold ? `${fold.open ? "o" : "c"}${fold.lines}` : ""}`;
  }

  private make(n: number, row: Row): HTMLElement {
    return rowOf(n, row, this.folds.at(n, row), this.marks, this.times);
  }

  private clicked(event: Event): void {
    const element = event.target as HTMLElement;
    const { fold, open, line } = element.dataset;
    if (fold !== undefined) {
      const row = this.lines.row(Number(fold));
      const found = row && this.folds.at(Number(fold), row);
      if (found) {
        this.setFollow(false);
        this.folds.toggle(found, Number(fold));
      }
      this.schedule();
    } else if (open !== undefined) this.onopen(Number(open));
    else if (line !== undefined) {
      event.preventDefault();
      this.onnumber(Number(line));
    }
  }

  // --- selecting -------------------------------------------------------------------------

  private selected = (): void => {
    if (this.selection()) this.setFollow(false);
  };

  /** Lines at which the selection, or the caret from which it may begin, stands. */
  private pinned(): number[] {
    const selected = getSelection();
    const found = new Set<number>();
    for (const node of [selected?.anchorNode, selected?.focusNode]) {
      const row = (node instanceof Element ? node : node?.parentElement)?.closest<HTMLElement>(".row");
      if (row && this.rows.contains(row)) found.add(Number(row.dataset.n));
    }
    return [...found].filter((n) => this.mounted.has(n));
  }

  /** The places (line, column of what is shown) between which something is selected. */
  selection(): { from: [number, number]; to: [number, number] } | null {
    const selected = getSelection();
    if (!selected || selected.isCollapsed || !selected.anchorNode || !selected.focusNode) return null;
    const anchor = placeOf(selected.anchorNode, selected.anchorOffset, this.rows);
    const focus = placeOf(selected.focusNode, selected.focusOffset, this.rows);
    if (!anchor || !focus) return null;
    const ordered = anchor[0] < focus[0] || (anchor[0] === focus[0] && anchor[1] <= focus[1]);
    return ordered ? { from: anchor, to: focus } : { from: focus, to: anchor };
  }
}
