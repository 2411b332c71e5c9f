// Finding in a run. The service searches, so the count is of the whole run; the page asks for
// the next hit behind (or before) a record and goes there.

import { pieces } from "./ansi";
import { json, records, type LogRecord, type Params } from "./api";

export type Mode = "text" | "case" | "regex" | "query";

interface Stats {
  matches: number;
  complete: boolean;
}

/** What was typed, in the language of searches. */
export function queryOf(text: string, mode: Mode): string {
  if (mode === "query") return text;
  if (mode === "regex") return `/${text.replace(/\\?\//g, "\\/")}/i`;
  const quoted = `"${text.replace(/[\\"]/g, "\\$&")}"`;
  return mode === "text" ? `${quoted}i` : quoted;
}

/** What to highlight; null if that cannot be said from the query. */
export function patternOf(text: string, mode: Mode): RegExp | null {
  if (!text) return null;
  try {
    if (mode === "regex") return new RegExp(text, "gi");
    if (mode === "query") {
      const words = [...text.matchAll(/"((?:[^"\\]|\\.)+)"|(?<![\w:.=<>"])([\w-]{2,})(?![\w:.=<>"])/g)]
        .map((found) => found[1]?.replace(/\\(.)/g, "$1") ?? found[2] ?? "")
        .filter((word) => word && !/^(AND|OR|NOT|TO)$/.test(word));
      if (!words.length) return null;
      return new RegExp(words.map(escaped).join("|"), "g");
    }
    return new RegExp(escaped(text), mode === "text" ? "gi" : "g");
  } catch {
    return null;
  }
}

const escaped = (text: string): string => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

/** What was found in a line: its columns of what is shown, and the line's whole text. */
export interface Match {
  line: number;
  text: string;
  start: number;
  end: number;
}

/** The first match in the lines of a record, as they are shown; null if none of them shows one. */
export function matchIn(message: string, pattern: RegExp | null): Match | null {
  if (!pattern) return null;
  for (const [line, text] of message.split("\n").entries()) {
    const shown = pieces(text).pieces.map((piece) => piece.text).join("");
    const found = new RegExp(pattern).exec(shown); // a copy begins at the beginning
    if (found?.[0]) return { line, text, start: found.index, end: found.index + found[0].length };
  }
  return null;
}

export class Finder {
  constructor(private readonly fqn: string, private readonly run: string) {}

  private params(q: string): Params {
    return { fqn: this.fqn, run: this.run, q, from: 0 };
  }

  /** How many records match, up to and including one if it is given. */
  async count(q: string, upTo: string | null, signal: AbortSignal): Promise<Stats> {
    // As a time of the search a ULID stands for its millisecond; as a condition it is exact.
    const params = upTo
      ? { ...this.params(`(${q}) ulid<=${upTo}`), stats_only: true, to: upTo }
      : { ...this.params(q), stats_only: true };
    return (await records<Stats>("query", params, signal)).stats;
  }

  /** The next match behind a record, or before it; from an end of the run without one. */
  async next(q: string, from: string | null, forward: boolean, signal: AbortSignal): Promise<LogRecord | null> {
    const wanted = from ? `(${q}) ulid${forward ? ">" : "<"}${from}` : q;
    const params: Params = { ...this.params(wanted), limit: 1, order: forward ? "asc" : "desc" };
    if (from) params[forward ? "from" : "to"] = from;
    return (await records<Stats>("query", params, signal)).records[0] ?? null;
  }
}

export interface Histogram {
  from: string;
  to: string;
  step_ms: number;
  buckets: { at: string; count: number; levels: Record<string, number> }[];
  stats: Stats;
}

export const histogram = (params: Params, signal: AbortSignal): Promise<Histogram> =>
  json<Histogram>("query/histogram", params, signal);
