// One line of a run as an element, and places in such elements.

import { pieces, type Piece } from "./ansi";
import { count, h, time } from "./dom";
import type { Fold } from "./folds";
import type { Row } from "./lines";

const SHOWN_CHARS = 4000;

export interface Marks {
  /** The line that the address names. */
  line: number | null;
  /** What a search looks for, to be highlighted. */
  pattern: RegExp | null;
  /** Lines that are new since the last successful run. */
  changed: Set<number>;
}

/** The element of a line, with the fold that begins there. */
export function rowOf(n: number, row: Row, fold: Fold | null, marks: Marks, times: boolean): HTMLElement {
  const { entry } = row;
  const level = entry.level ?? "";
  const { pieces: parts, overwritten } = pieces(row.text.slice(0, SHOWN_CHARS));
  const tools: HTMLElement[] = [];
  if (fold) {
    const label = fold.open ? "fold" : `${count(fold.lines)} more ${fold.lines === 1 ? "line" : "lines"}`;
    tools.push(h("button", { class: "fold", "aria-expanded": String(fold.open), "data-fold": n, type: "button" }, `${fold.open ? "▾" : "▸"} ${label}`));
  }
  const hidden = row.length - Math.min(row.text.length, SHOWN_CHARS);
  if (hidden > 0) tools.push(h("button", { class: "fold", "data-open": n, type: "button" }, `… ${count(hidden)} more characters`));
  if (overwritten) tools.push(h("span", { class: "over", title: "Earlier text of this line was overwritten; copy the line to have all of it" }, "↻"));
  const mark = `${n === marks.line ? " marked" : ""}${marks.changed.has(n) ? " new" : ""}`;
  return h(
    "div",
    { class: `row lv-${level}${mark}${entry.first === n ? "" : " inside"}`, "data-n": n },
    h("a", { class: "no", href: "#", draggable: "false", tabindex: "-1", "data-line": n, title: "Link to this line" }, count(n + 1)),
    times ? h("span", { class: "at" }, entry.first === n && entry.ts ? time(entry.ts) : "") : null,
    h("span", { class: "tx" }, ...parts.map(styled)),
    ...tools,
  );
}

/** The line and the column of a place in the document; null if it is in no row. */
export function placeOf(node: Node, offset: number, rows: HTMLElement): [number, number] | null {
  if (!rows.contains(node) || node === rows) return null;
  const element = node instanceof Element ? node : node.parentElement;
  const row = element?.closest<HTMLElement>(".row");
  const text = row?.querySelector(".tx");
  if (!row || !text) return null;
  const before = document.createRange();
  before.setStart(text, 0);
  const n = Number(row.dataset.n);
  if (text.contains(node)) before.setEnd(node, offset);
  else if (text.compareDocumentPosition(node) & Node.DOCUMENT_POSITION_FOLLOWING || node === row) {
    if (node === row && offset === 0) return [n, 0];
    before.setEnd(text, text.childNodes.length);
  } else return [n, 0];
  return [n, before.toString().length];
}

/** What of a text a pattern matches. */
function rangesOf(text: Element, pattern: RegExp): Range[] {
  const ranges: Range[] = [];
  const walker = document.createTreeWalker(text, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    for (const match of (node.nodeValue ?? "").matchAll(pattern)) {
      if (!match[0] || ranges.length > 500) break;
      const range = document.createRange();
      range.setStart(node, match.index);
      range.setEnd(node, match.index + match[0].length);
      ranges.push(range);
    }
  }
  return ranges;
}

/** Marks what of some texts a pattern matches, in place of what was marked under this name. */
export function highlight(name: string, texts: Iterable<Element>, pattern: RegExp | null): void {
  const found = CSS.highlights;
  if (!found) return;
  found.delete(name);
  if (!pattern) return;
  const ranges = [...texts].flatMap((text) => rangesOf(text, pattern));
  if (ranges.length) found.set(name, new Highlight(...ranges));
}

/** A piece of a line as an element, or as text where it has no style. */
export function styled(piece: Piece): Node | string {
  if (!piece.style && !piece.color && !piece.background) return piece.text;
  const element = h("span", { class: piece.style || undefined }, piece.text);
  if (piece.color) element.style.color = piece.color;
  if (piece.background) element.style.backgroundColor = piece.background;
  return element;
}
