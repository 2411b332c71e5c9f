// A line of a log as pieces of plain text with styles. SGR colours are kept; every other
// escape is left out, control characters are shown as pictures of one character, and of a
// progress line (`10%\r20%`) only what a terminal would show at its end.

export interface Piece {
  text: string;
  /** Class names, separated by spaces. */
  style: string;
  /** Colours beyond the palette of 16, as `#rrggbb`. */
  color?: string;
  background?: string;
  /** Where the piece begins in the raw line; within a piece, characters correspond. */
  raw: number;
}

// CSI, OSC and the escapes of two characters.
// eslint-disable-next-line no-control-regex
const ESCAPE = /\x1b(?:\[([0-?]*)[ -/]*([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_]|[ -/]+[0-~])/g;
const PLAIN = /^[^\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069\u2028\u2029]*$/;
const CONTROL = /[\x00-\x08\x0b-\x1f]/g;
const OTHERS = /[\x7f-\x9f\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069\u2028\u2029]/g;

const picture = (c: string): string => String.fromCharCode(0x2400 + c.charCodeAt(0));
const visible = (text: string): string => text.replace(CONTROL, picture).replace(OTHERS, "␦");

function hex(r: number, g: number, b: number): string {
  return `#${[r, g, b].map((n) => Math.min(255, n || 0).toString(16).padStart(2, "0")).join("")}`;
}

function of256(n: number): string | number {
  if (n < 16) return n;
  if (n >= 232) return hex(8 + (n - 232) * 10, 8 + (n - 232) * 10, 8 + (n - 232) * 10);
  const level = (v: number): number => (v ? 55 + v * 40 : 0);
  const at = n - 16;
  return hex(level(Math.floor(at / 36)), level(Math.floor(at / 6) % 6), level(at % 6));
}

class Style {
  bold = false;
  dim = false;
  italic = false;
  underline = false;
  inverse = false;
  strike = false;
  color: string | number | null = null;
  background: string | number | null = null;

  apply(parameters: string): void {
    const codes = parameters.split(/[;:]/).map((text) => Number(text) || 0);
    for (let at = 0; at < codes.length; at++) {
      const code = codes[at]!;
      if (code === 38 || code === 48) {
        const mode = codes[at + 1];
        let color: string | number | null = null;
        if (mode === 5) color = of256(Math.min(255, codes[at + 2] ?? 0));
        else if (mode === 2) color = hex(codes[at + 2] ?? 0, codes[at + 3] ?? 0, codes[at + 4] ?? 0);
        at += mode === 5 ? 2 : 4;
        if (code === 38) this.color = color;
        else this.background = color;
      } else this.one(code);
    }
  }

  private one(code: number): void {
    if (code === 0) Object.assign(this, new Style());
    else if (code === 1) this.bold = true;
    else if (code === 2) this.dim = true;
    else if (code === 3) this.italic = true;
    else if (code === 4) this.underline = true;
    else if (code === 7) this.inverse = true;
    else if (code === 9) this.strike = true;
    else if (code === 22) this.bold = this.dim = false;
    else if (code === 23) this.italic = false;
    else if (code === 24) this.underline = false;
    else if (code === 27) this.inverse = false;
    else if (code === 29) this.strike = false;
    else if (code >= 30 && code <= 37) this.color = code - 30;
    else if (code === 39) this.color = null;
    else if (code >= 40 && code <= 47) this.background = code - 40;
    else if (code === 49) this.background = null;
    else if (code >= 90 && code <= 97) this.color = code - 82;
    else if (code >= 100 && code <= 107) this.background = code - 92;
  }

  piece(text: string, raw: number): Piece {
    const names: string[] = [];
    for (const name of ["bold", "dim", "italic", "underline", "inverse", "strike"] as const) {
      if (this[name]) names.push(name);
    }
    const piece: Piece = { text: visible(text), style: "", raw };
    if (typeof this.color === "number") names.push(`fg${this.color}`);
    else if (this.color) piece.color = this.color;
    if (typeof this.background === "number") names.push(`bg${this.background}`);
    else if (this.background) piece.background = this.background;
    piece.style = names.join(" ");
    return piece;
  }
}

/** The pieces of a line, and whether a carriage return overwrote some of it. */
export function pieces(line: string): { pieces: Piece[]; overwritten: boolean } {
  if (PLAIN.test(line)) return { pieces: line ? [{ text: line, style: "", raw: 0 }] : [], overwritten: false };
  let start = 0;
  let end = line.length;
  while (end > 0 && line[end - 1] === "\r") end--;
  const back = line.lastIndexOf("\r", end - 1);
  if (back >= 0 && end > 0) start = back + 1;
  const found: Piece[] = [];
  const style = new Style();
  let at = 0;
  ESCAPE.lastIndex = 0;
  const add = (from: number, to: number): void => {
    from = Math.max(from, start);
    to = Math.min(to, end);
    if (from < to) found.push(style.piece(line.slice(from, to), from));
  };
  for (let match = ESCAPE.exec(line); match; match = ESCAPE.exec(line)) {
    add(at, match.index);
    if (match[2] === "m") style.apply(match[1] ?? "");
    at = match.index + match[0].length;
  }
  add(at, line.length);
  return { pieces: found, overwritten: start > 0 };
}

/** The place in the raw line of a column of what is shown; behind the last column is its end. */
export function rawColumn(line: string, column: number): number {
  if (column === 0) return 0;
  let shown = 0;
  for (const piece of pieces(line).pieces) {
    if (column < shown + piece.text.length) return piece.raw + column - shown;
    shown += piece.text.length;
  }
  return line.length;
}
