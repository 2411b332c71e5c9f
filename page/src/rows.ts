// One line of a run as an element, and places in such elements.

import { pieces, type Piece } from "./ansi";
import { count, h, time } from "./dom";
import type { Match } from "./find";
import type { Fold } from "./folds";
import type { Row } from "./lines";

const SHOWN_CHARS = 4000;
/** So much of a long line is shown before a match in it. */
const CHARS_BEFORE = 1000;

export interface Marks {
  /** The line that the address names. */
  line: number | null;
  /** What a search looks for, to be highlighted. */
  pattern: RegExp | null;
  /** What of it was gone to last. */
  match: Match | null;
  /** Lines that are new since the last successful run. */
  changed: Set<number>;
}

interface Part {
  pieces: Piece[];
  overwritten: boolean;
  /** Characters that are left out before and behind it. */
  before: number;
  behind: number;
}

/** What is shown of a line: its beginning, or what is around a match beyond that. */
function partOf(row: Row, match: Match | null): Part {
  if (!match || match.end <= SHOWN_CHARS) {
    const behind = row.length - Math.min(row.text.length, SHOWN_CHARS);
    return { ...pieces(row.text.slice(0, SHOWN_CHARS)), before: 0, behind };
  }
  const { pieces: all, overwritten } = pieces(match.text);
  const before = Math.max(0, match.start - CHARS_BEFORE);
  const found: Piece[] = [];
  let at = 0;
  for (const piece of all) {
    const text = piece.text.slice(Math.max(0, before - at), Math.max(0, before + SHOWN_CHARS - at));
    if (text) found.push({ ...piece, text });
    at += piece.text.length;
  }
  return { pieces: found, overwritten, before, behind: Math.max(0, at - before - SHOWN_CHARS) };
}

const more = (n: number, chars: number, where: string): HTMLElement =>
  h("button", { class: "fold", "data-open": n, type: "button" }, `… ${count(chars)} ${where}`);

/** The element of a line, with the fold that begins there. */
export function rowOf(n: number, row: Row, fold: Fold | null, marks: Marks, times: boolean): HTMLElement {
  const { entry } = row;
  const level = entry.level ?? "";
  const part = partOf(row, marks.match?.line === n ? marks.match : null);
  const tools: HTMLElement[] = [];
  if (fold) {
    const label = fold.open ? "fold" : `${count(fold.lines)} more ${fold.lines === 1 ? "line" : "lines"}`;
    tools.push(h("button", { class: "fold", "aria-expanded": String(fold.open), "data-fold": n, type: "button" }, `${fold.open ? "▾" : "▸"} ${label}`));
  }
  if (part.behind) tools.push(more(n, part.behind, "more characters"));
  if (part.overwritten) tools.push(h("span", { class: "over", title: "Earlier text of this line was overwritten; copy the line to have all of it" }, "↻"));
  const mark = `${n === marks.line ? " marked" : ""}${marks.changed.has(n) ? " new" : ""}`;
  return h(
    "div",
    { class: `row lv-${level}${mark}${entry.first === n ? "" : " inside"}`, "data-n": n },
    h("a", { class: "no", href: "#", draggable: "false", tabindex: "-1", "data-line": n, title: "Link to this line" }, count(n + 1)),
    times ? h("span", { class: "at" }, entry.first === n && entry.ts ? time(entry.ts) : "") : null,
    part.before ? more(n, part.before, "characters before") : null,
    h("span", { class: "tx", "data-before": part.before || undefined }, ...part.pieces.map(styled)),
    ...tools,
  );
}

/** The line and the column of a place in the document; null if it is in no row. */
export function placeOf(node: Node, offset: number, rows: HTMLElement): [number, number] | null {
  if (!rows.contains(node) || node === rows) return null;
  const element = node instanceof Element ? node : node.parentElement;
  const row = element?.closest<HTMLElement>(".row");
  const text = row?.querySelector<HTMLElement>(".tx");
  if (!row || !text) return null;
  const before = document.createRange();
  before.setStart(text, 0);
  const n = Number(row.dataset.n);
  if (text.contains(node)) before.setEnd(node, offset);
  else if (text.compareDocumentPosition(node) & Node.DOCUMENT_POSITION_FOLLOWING || node === row) {
    if (node === row && offset === 0) return [n, 0];
    before.setEnd(text, text.childNodes.length);
  } else return [n, 0];
  return [n, columnsBefore(text) + before.toString().length];
}

/** Columns of a line before those that its element has. */
const columnsBefore = (text: HTMLElement): number => Number(text.dataset.before ?? 0);

/** What of a line is between two columns. */
export function rangeOf(text: HTMLElement, start: number, end: number): Range {
  const range = document.createRange();
  const walker = document.createTreeWalker(text, NodeFilter.SHOW_TEXT);
  let at = columnsBefore(text);
  range.selectNodeContents(text);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const length = node.nodeValue?.length ?? 0;
    if (at <= start && start < at + length) range.setStart(node, start - at);
    if (at < end && end <= at + length) range.setEnd(node, end - at);
    at += length;
  }
  return range;
}

/** What of a text a pattern matches, also where its colour changes within a match. */
function rangesOf(text: HTMLElement, pattern: RegExp): Range[] {
  const ranges: Range[] = [];
  const before = columnsBefore(text);
  for (const match of (text.textContent ?? "").matchAll(pattern)) {
    if (!match[0] || ranges.length > 500) break;
    ranges.push(rangeOf(text, before + match.index, before + match.index + match[0].length));
  }
  return ranges;
}

/** Marks what of some texts a pattern matches, in place of what was marked under this name. */
export function highlight(name: string, texts: Iterable<HTMLElement>, pattern: RegExp | null): void {
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
