// Which lines of a run are new: a line is, if its text, with what differs from run to run masked,
// is not among the masked lines of the successful run. Nothing here knows of the page, so it runs
// in a worker, beside the frames.

/** Different masked lines of the successful run that are kept. */
const MOST_KNOWN = 300_000;
export const MOST_KINDS = 500;
const MOST_LINES = 1_000_000;
const MOST_COMPARED = 2000;

// eslint-disable-next-line no-control-regex
const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])/g;
const UUIDS = /[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/gi;
const IDS = /\b(?:0x[0-9a-f]+|[0-7][0-9A-HJKMNP-TV-Z]{25}|(?=[a-f]*[0-9])[0-9a-f]{7,})\b/gi;
const DAYS = /\b(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? +)?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* +\d+/g;
const NUMBERS = /[-+]?\d+(?:[.,:]\d+)*/g;
const SPACES = /\s+/g;

/** A line without what differs from run to run: numbers, ids, times, colours, progress. */
function masked(line: string): string {
  const shown = line.slice(0, MOST_COMPARED).replace(/\r+$/, "");
  return shown
    .slice(shown.lastIndexOf("\r") + 1)
    .replace(ESCAPES, "")
    .replace(UUIDS, "#")
    .replace(IDS, "#")
    .replace(DAYS, "#")
    .replace(NUMBERS, "#")
    .replace(SPACES, " ")
    .trim();
}

export interface Kind {
  /** The first such line, as it is. */
  text: string;
  first: number;
  count: number;
}

export interface Compared {
  /** Lines of the run that were compared. */
  compared: number;
  /** Lines that are new, in order, and how many there are, if those are too many to keep. */
  lines: number[];
  total: number;
  kinds: Kind[];
}

/** A text that comes in pieces of bytes, as lines. */
export class Lines {
  private readonly decoder = new TextDecoder();
  private rest = "";
  /** Characters so far. */
  chars = 0;

  /** The lines that end in these bytes; without bytes, what is left. */
  of(bytes: Uint8Array | null): string[] {
    const text = bytes ? this.decoder.decode(bytes, { stream: true }) : this.decoder.decode();
    this.chars += text.length;
    const parts = (this.rest + text).split("\n");
    this.rest = bytes ? parts.pop()! : "";
    if (!bytes && parts.at(-1) === "") parts.pop();
    return parts;
  }
}

export class Comparison {
  private readonly known = new Set<string>();
  private readonly kinds = new Map<string, Kind>();
  private readonly lines: number[] = [];
  private total = 0;
  private compared = 0;

  /** Remembers lines of the successful run; false: it keeps no more. */
  remember(lines: string[]): boolean {
    for (const line of lines) {
      if (this.known.add(masked(line)).size > MOST_KNOWN) return false;
    }
    return true;
  }

  /** Looks at the next lines of the run. */
  look(lines: string[]): void {
    for (const line of lines) {
      const n = this.compared++;
      const text = masked(line);
      if (!text || this.known.has(text)) continue;
      this.total++;
      if (this.lines.length < MOST_LINES) this.lines.push(n);
      const kind = this.kinds.get(text);
      if (kind) kind.count++;
      else if (this.kinds.size < MOST_KINDS) this.kinds.set(text, { text: line.slice(0, MOST_COMPARED), first: n, count: 1 });
    }
  }

  result(): Compared {
    return { compared: this.compared, lines: this.lines, total: this.total, kinds: [...this.kinds.values()] };
  }
}
